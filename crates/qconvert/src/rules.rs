//! Which scheme each weight gets: the default, `--include`/`--exclude`, and recipes.

use crate::{Error, Result, source::Weight};
use globset::{Glob, GlobMatcher};
use schemes::Scheme;
use serde::Deserialize;

/// What a recipe file says: a default scheme and rules, the last match of which wins.
///
/// ```toml
/// default = "int4-g64"
///
/// [[rule]]
/// match = "model.layers.0.*"
/// scheme = "int8-row"
///
/// [[rule]]
/// match = "*.down_proj"
/// scheme = "keep"
/// ```
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    default: Option<String>,
    #[serde(default, rename = "rule")]
    rules: Vec<RecipeRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeRule {
    r#match: String,
    scheme: String,
}

/// A recipe with its patterns compiled.
#[derive(Debug, Clone, Default)]
pub struct Recipe {
    /// Scheme of block projections that no rule names; the request's when none.
    pub default: Option<Scheme>,
    rules: Vec<(GlobMatcher, Option<Scheme>)>,
}

impl Recipe {
    /// Parses a recipe from TOML.
    ///
    /// # Errors
    /// [`Error::Request`] that names the line, pattern or scheme.
    pub fn parse(text: &str) -> Result<Self> {
        let file: RecipeFile =
            toml::from_str(text).map_err(|e| Error::Request(format!("recipe: {}", e.to_string().trim_end())))?;
        let default = file.default.as_deref().map(parse_scheme).transpose()?;
        let mut rules = Vec::with_capacity(file.rules.len());
        for rule in &file.rules {
            let scheme = if rule.scheme == "keep" { None } else { Some(parse_scheme(&rule.scheme)?) };
            rules.push((glob(&rule.r#match)?, scheme));
        }
        Ok(Recipe { default, rules })
    }

    /// Every scheme that the recipe names.
    pub fn schemes(&self) -> impl Iterator<Item = Scheme> + '_ {
        self.default.into_iter().chain(self.rules.iter().filter_map(|r| r.1))
    }
}

/// How weights are chosen.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    include: Vec<GlobMatcher>,
    exclude: Vec<GlobMatcher>,
    recipe: Option<Recipe>,
}

impl Rules {
    /// Compiles the patterns, which are globs over module names (`model.layers.0.mlp.down_proj`,
    /// `lm_head`).
    ///
    /// # Errors
    /// [`Error::Request`] with the pattern that is wrong.
    pub fn new(include: &[String], exclude: &[String], recipe: Option<Recipe>) -> Result<Self> {
        let compile = |patterns: &[String]| patterns.iter().map(|p| glob(p)).collect::<Result<Vec<_>>>();
        Ok(Rules { include: compile(include)?, exclude: compile(exclude)?, recipe })
    }

    /// The recipe, if there is one.
    pub fn recipe(&self) -> Option<&Recipe> {
        self.recipe.as_ref()
    }

    /// The scheme of `weight` under the requested `scheme`; none when it stays as it is.
    pub fn scheme_for(&self, weight: &Weight, scheme: Scheme) -> Option<Scheme> {
        let module = weight.module();
        let hit = |patterns: &[GlobMatcher]| patterns.iter().any(|p| p.is_match(module));
        let default = self.recipe.as_ref().and_then(|r| r.default).unwrap_or(scheme);
        if matches!(default, Scheme::Float(_)) && self.recipe.is_none() {
            return (!hit(&self.exclude)).then_some(default);
        }
        let mut chosen = (weight.is_block_projection() || (is_matrix(weight) && hit(&self.include))).then_some(default);
        for (pattern, scheme) in self.recipe.iter().flat_map(|r| &r.rules) {
            if is_matrix(weight) && pattern.is_match(module) {
                chosen = *scheme;
            }
        }
        if hit(&self.exclude) { None } else { chosen }
    }

    /// Patterns that match no weight are mistakes: says which.
    ///
    /// # Errors
    /// [`Error::Request`] with the first such pattern.
    pub fn check(&self, weights: &[Weight]) -> Result<()> {
        let recipe = self.recipe.iter().flat_map(|r| r.rules.iter().map(|r| &r.0));
        for pattern in self.include.iter().chain(&self.exclude).chain(recipe) {
            if !weights.iter().any(|w| pattern.is_match(w.module())) {
                return Err(Error::Request(format!(
                    "pattern '{}' matches no weight; names look like '{}'",
                    pattern.glob(),
                    weights
                        .iter()
                        .find(|w| w.is_block_projection())
                        .map_or("model.layers.0.mlp.down_proj", Weight::module)
                )));
            }
        }
        Ok(())
    }
}

fn is_matrix(weight: &Weight) -> bool {
    matches!(weight.values, crate::source::Values::Matrix(_))
}

fn glob(pattern: &str) -> Result<GlobMatcher> {
    let glob = Glob::new(pattern).map_err(|e| Error::Request(format!("pattern '{pattern}': {}", e.kind())))?;
    Ok(glob.compile_matcher())
}

fn parse_scheme(name: &str) -> Result<Scheme> {
    name.parse().map_err(|e: schemes::Error| Error::Request(format!("recipe: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemes::{FloatType, Matrix, RowOrder, Storage};
    use store::Bytes;

    fn weight(name: &str) -> Weight {
        let storage = Storage::Float(FloatType::F16, Bytes::from(vec![0u8; 64]));
        let matrix = Matrix::new(4, 8, storage, RowOrder::Natural).expect("fits");
        Weight {
            name: format!("{name}.weight"),
            shape: vec![4, 8],
            float: Some(FloatType::F16),
            values: crate::source::Values::Matrix(matrix),
            main: String::new(),
        }
    }

    #[test]
    fn defaults_patterns_and_recipes() {
        let (q, head, norm) =
            (weight("model.layers.0.self_attn.q_proj"), weight("lm_head"), weight("model.layers.0.input_layernorm"));
        let s: Scheme = "int8-row".parse().expect("known");
        let rules = Rules::default();
        assert_eq!(rules.scheme_for(&q, s), Some(s));
        assert_eq!((rules.scheme_for(&head, s), rules.scheme_for(&norm, s)), (None, None));
        let rules = Rules::new(&["lm_head".into()], &["*.q_proj".into()], None).expect("compiles");
        assert_eq!((rules.scheme_for(&q, s), rules.scheme_for(&head, s)), (None, Some(s)));
        let recipe = "default = \"nf4\"\n[[rule]]\nmatch = \"*.q_proj\"\nscheme = \"int8-row\"\n[[rule]]\nmatch=\"lm_head\"\nscheme=\"keep\"";
        let rules = Rules::new(&[], &[], Some(Recipe::parse(recipe).expect("parses"))).expect("compiles");
        assert_eq!(rules.scheme_for(&q, s), Some(s));
        assert_eq!(
            rules.scheme_for(&weight("model.layers.1.mlp.up_proj"), s),
            Some(Scheme::Nf4 { double_quant: false })
        );
    }

    #[test]
    fn mistakes_are_named() {
        let rules = Rules::new(&["lm_haed".into()], &[], None).expect("compiles");
        let message = rules.check(&[weight("lm_head")]).expect_err("no match").to_string();
        assert!(message.contains("lm_haed"), "{message}");
        assert!(Recipe::parse("[[rule]]\nmatch='x'\nscheme='int9'").is_err());
        assert!(Recipe::parse("surprise = 1").is_err());
        assert!(Rules::new(&["a[".into()], &[], None).is_err());
    }
}
