//! Position of a module in a model: its block, and the kind of its layer.

use indexmap::IndexSet;

/// The number of the block that a module lies in; none for embeddings and the like.
pub fn block(module: &str) -> Option<usize> {
    module.split('.').find_map(|part| part.parse().ok())
}

/// The last part of a module's name, such as `down_proj`.
pub fn kind(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// The module's name as views show it: without the `model.` that all begin with.
pub fn short(module: &str) -> &str {
    module.strip_prefix("model.").unwrap_or(module)
}

/// The kinds among these modules, in order of appearance.
pub fn kinds<'a>(modules: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    modules.map(kind).collect::<IndexSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_kinds() {
        let module = "model.layers.12.mlp.down_proj";
        assert_eq!((block(module), kind(module), short(module)), (Some(12), "down_proj", "layers.12.mlp.down_proj"));
        assert_eq!((block("lm_head"), kind("lm_head"), short("lm_head")), (None, "lm_head", "lm_head"));
        assert_eq!(kinds(["a.0.x", "a.0.y", "a.1.x"].into_iter()), ["x", "y"]);
    }
}
