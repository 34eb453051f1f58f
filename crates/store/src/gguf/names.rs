//! Names of tensors: Hugging Face's and GGUF's, for the families that both know.

use crate::Family;

/// Names outside the blocks: GGUF's and Hugging Face's.
const GLOBAL: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Names inside a block.
const BLOCK: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Architectures whose tensors have these names.
pub const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// The Hugging Face name of a GGUF tensor of llama, qwen2 or qwen3; none when it has none. Parts of a weight
/// (`blk.0.ffn_down.weight.codes`) and what else stands beside one (`blk.0.ffn_down.scale`) are named after it.
pub fn gguf_to_hf_name(name: &str) -> Option<String> {
    match name.strip_prefix("blk.") {
        Some(rest) => {
            let (layer, rest) = layer(rest)?;
            let (stem, suffix) = rest.split_once('.')?;
            let (_, hf) = BLOCK.iter().find(|(gguf, _)| *gguf == stem)?;
            Some(format!("model.layers.{layer}.{hf}.{suffix}"))
        }
        None => {
            let (stem, suffix) = name.split_once('.')?;
            let (_, hf) = GLOBAL.iter().find(|(gguf, _)| *gguf == stem)?;
            Some(format!("{hf}.{suffix}"))
        }
    }
}

/// The GGUF name of a Hugging Face parameter of llama, qwen2 or qwen3: the inverse of
/// [`gguf_to_hf_name`]; none when it has none.
pub fn hf_to_gguf_name(name: &str) -> Option<String> {
    let (stems, rest, prefix): (&[_], _, _) = match name.strip_prefix("model.layers.") {
        Some(rest) => {
            let (layer, rest) = layer(rest)?;
            (&BLOCK, rest, format!("blk.{layer}."))
        }
        None => (&GLOBAL, name, String::new()),
    };
    stems.iter().find_map(|(gguf, hf)| {
        let suffix = rest.strip_prefix(hf)?.strip_prefix('.')?;
        is_parameter(suffix).then(|| format!("{prefix}{gguf}.{suffix}"))
    })
}

/// Returns whether llama.cpp reads a bias of `module`, by its Hugging Face name. A file with any other bias is refused
/// there.
pub fn reads_bias(family: Family, module: &str) -> bool {
    match module.rsplit('.').next() {
        Some("q_proj" | "k_proj" | "v_proj") => true,
        Some("o_proj" | "gate_proj" | "up_proj" | "down_proj") => family == Family::Llama,
        Some("lm_head") => family == Family::Qwen2,
        _ => false,
    }
}

/// The part of a block that a GGUF name names, such as `attn_q`.
pub(super) fn block_part(name: &str) -> Option<&str> {
    let (_, rest) = layer(name.strip_prefix("blk.")?)?;
    rest.split_once('.').map(|(stem, _)| stem)
}

/// Returns whether a name ends in a parameter (`weight`, `bias`) or a part of one (`weight.codes`).
fn is_parameter(suffix: &str) -> bool {
    let name = suffix.split_once('.').map_or(suffix, |(name, _)| name);
    matches!(name, "weight" | "bias")
}

/// A layer number in canonical form, and what follows its dot.
fn layer(s: &str) -> Option<(usize, &str)> {
    let (digits, rest) = s.split_once('.')?;
    let n: usize = digits.parse().ok()?;
    (n.to_string() == digits).then_some((n, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (hf, gguf) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
            ("model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias"),
            ("model.layers.12.self_attn.q_norm.weight", "blk.12.attn_q_norm.weight"),
            ("model.layers.3.self_attn.o_proj.weight.scales", "blk.3.attn_output.weight.scales"),
            ("model.layers.3.mlp.down_proj.weight.codes", "blk.3.ffn_down.weight.codes"),
        ] {
            assert_eq!(hf_to_gguf_name(hf).as_deref(), Some(gguf));
            assert_eq!(gguf_to_hf_name(gguf).as_deref(), Some(hf));
        }
    }

    #[test]
    fn companions_are_named_after_their_weights() {
        for (gguf, hf) in [
            ("blk.3.attn_q.scale", "model.layers.3.self_attn.q_proj.scale"),
            ("blk.3.ffn_down.lora_a", "model.layers.3.mlp.down_proj.lora_a"),
            ("output.input_scale", "lm_head.input_scale"),
        ] {
            assert_eq!(gguf_to_hf_name(gguf).as_deref(), Some(hf));
        }
    }

    #[test]
    fn unknown_names_have_none() {
        for name in ["rope_freqs.weight", "blk.0.attn_qkv.weight", "blk.00.attn_q.weight", "blk.0.attn_q", "output"] {
            assert_eq!(gguf_to_hf_name(name), None, "{name}");
        }
        for name in ["model.layers.0.self_attn.qkv_proj.weight", "model.normal.weight", "lm_head", "lm_head.extra"] {
            assert_eq!(hf_to_gguf_name(name), None, "{name}");
        }
        assert_eq!(block_part("blk.7.attn_q.weight.codes"), Some("attn_q"));
    }
}
