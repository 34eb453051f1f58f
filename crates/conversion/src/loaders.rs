//! Models that transformers can load from compressed-tensors and bitsandbytes, and the names by which config.json tells
//! it what stays float.
//!
//! transformers turns every Linear of a model into a quantized one, except those in `ignore`
//! (compressed-tensors) or `llm_int8_skip_modules` (bitsandbytes). A Linear that is stored float
//! and not named there is made up at random, with no more than a log line. transformers also renames, merges and
//! splits weights of many families while it loads them.

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::plan::{Plan, Source};
use crate::roles::{self, Role};
use crate::source::Weight;
use regex::Regex;
use schemes::{Scheme, nf4};
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};

/// Families whose experts transformers merges into one tensor. It decodes them first when they
/// are weight-only compressed-tensors; bitsandbytes and W8A8 experts it can't decode, and float
/// experts beside compressed-tensors weights it drops.
const MERGES_EXPERTS: [&str; 52] = [
    "afmoe",
    "axk1",
    "axk2",
    "bailing_hybrid",
    "beam",
    "cohere2_moe",
    "deepseek_ocr2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "dots1",
    "ernie4_5_moe",
    "ernie4_5_vl_moe",
    "exaone_moe",
    "flex_olmo",
    "flint",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe",
    "glm5_next",
    "glm5_next_text",
    "glm_moe_dsa",
    "hunyuan_v1_moe",
    "hy_v3",
    "jamba",
    "kimi_k25",
    "kimi_linear",
    "kolibri1",
    "laguna",
    "lfm2_moe",
    "longcat_flash",
    "mellum",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl",
    "mixtral",
    "nemotron_h",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_omni_moe",
    "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker",
    "qwen4_exp_text",
    "sarvam_mla",
    "sarvam_moe",
    "solar_open",
];

/// Families of which transformers merges weights that stay float here, and drops these beside
/// compressed-tensors weights.
const MERGES_FLOATS: [&str; 15] = [
    "bailing_hybrid",
    "ernie4_5_vl_moe",
    "glm5_next",
    "glm5_next_text",
    "inkling2",
    "inkling2_loop",
    "inkling2_loop_text",
    "inkling2_text",
    "kimi_k25",
    "kimi_linear",
    "lara_mini",
    "olmo_hybrid",
    "qianfan_ocr",
    "qwen4_exp_text",
    "unlimited_ocr",
];

/// Families whose projections transformers splits, merges, reorders or moves to another stack while it loads them.
const REWRITES_PROJECTIONS: [&str; 18] = [
    "cohere_asr",
    "cosmos3_omni",
    "gradium_phonon_tts",
    "gte",
    "hrm_text",
    "inkling_mm_model",
    "jina_embeddings_v3",
    "minimax_m3_vl",
    "mistral_large4",
    "mistral_large4_text",
    "molmo2",
    "molmo2_text",
    "nemo_speechlm",
    "nomic_bert",
    "sarvam_moe",
    "step3p7",
    "tipsv2",
    "tipsv2_text_model",
];

/// Families whose projections are a class of their own, which reads `weight` itself.
const OWN_LINEAR: [&str; 1] = ["falcon"];

/// Families in which transformers initializes every Linear through its `weight` before it loads
/// any: a weight-only compressed-tensors Linear has none.
const INITIALIZES_LINEARS: [&str; 18] = [
    "apertus1p5",
    "blt",
    "longt5",
    "modernbert",
    "modernbert-decoder",
    "modernbert_decoder",
    "mt5",
    "phi4_multimodal",
    "pix2struct",
    "pop2piano",
    "recurrent_gemma",
    "rwkv",
    "switch_transformers",
    "t5",
    "udop",
    "ultravbert",
    "umt5",
    "xlstm",
];

/// Families in which transformers loads one kind of projection as f32 whatever is stored, so that
/// bitsandbytes can't hold it.
const KEPT_F32: [(&[&str], &str); 1] = [(&["mt5", "pop2piano", "t5", "udop", "umt5"], "wo")];

/// Families in which transformers initializes one kind of projection through its `weight`.
const INITIALIZES: [(&str, &str); 4] =
    [("falcon_mamba", "out_proj"), ("gpt_bigcode", "c_proj"), ("mamba", "out_proj"), ("nanochat", "o_proj")];

/// Projections of blocks that transformers renames: family, name in the checkpoint, name in the model.
const RENAMED: [(&str, &str, &str); 20] = [
    ("axk2", "W_down", "fc1"),
    ("axk2", "W_up", "fc2"),
    ("axk2", "q_b_proj", "q_gate_proj"),
    ("deepseek_v4", "w1", "gate_proj"),
    ("deepseek_v4", "w2", "down_proj"),
    ("deepseek_v4", "w3", "up_proj"),
    ("deepseek_v4", "wgate", "gate_proj"),
    ("deepseek_v4", "wkv", "kv_proj"),
    ("deepseek_v4", "wo_a", "o_a_proj"),
    ("deepseek_v4", "wo_b", "o_b_proj"),
    ("deepseek_v4", "wq_a", "q_a_proj"),
    ("deepseek_v4", "wq_b", "q_b_proj"),
    ("dory", "g_proj", "gate_proj"),
    ("exaone", "c_fc_0", "gate_proj"),
    ("exaone", "c_fc_1", "up_proj"),
    ("exaone", "c_proj", "down_proj"),
    ("exaone", "out_proj", "o_proj"),
    ("hy_v4", "linear_gate", "gate_proj"),
    ("hy_v4_vl_text", "linear_gate", "gate_proj"),
    ("lfm3", "gate_proj", "g_proj"),
];

/// Output projections that transformers ties to the embedding, under names other than `lm_head`.
const TIED_HEADS: [&str; 14] = [
    "embed_out",
    "output_projection",
    "proj_out",
    "head",
    "decoder",
    "output",
    "lm_loss",
    "generator_lm_head",
    "vocab_projector",
    "pred_layer.proj",
    "head.decoder",
    "lm_head.decoder",
    "lm_head.out_proj",
    "cls.predictions.decoder",
];

/// Modules beyond the text model as transformers renames them (`vit` becomes `vision_tower`).
const TOWER_PATTERN: &str =
    r".*(vision|visual|image|video|audio|speech|sound|projector|connector|merger|resampler|perceive|tower).*";

/// Every `model_type` of a configuration, those of its sub-configurations too.
fn model_types(config: &Value) -> Vec<&str> {
    let Some(object) = config.as_object() else { return Vec::new() };
    let own = object.get("model_type").and_then(Value::as_str).into_iter();
    let nested = object.iter().filter(|(key, _)| key.ends_with("config")).flat_map(|(_, value)| model_types(value));
    own.chain(nested).collect()
}

fn family<'a>(source: &'a Source<'_>, families: &[&str]) -> Option<&'a str> {
    let types = source.model.config_json.as_ref().map(model_types).unwrap_or_default();
    types.into_iter().find(|t| families.contains(t))
}

/// Returns whether transformers and vLLM load the layout as modules of a model.
fn is_loaded(layout: Layout) -> bool {
    matches!(layout, Layout::CompressedTensors | Layout::Bitsandbytes)
}

/// The reason that a weight stays float in a layout unless the user names it: what loads the artifact can't
/// load the weight quantized.
pub fn stays_float(source: &Source<'_>, weight: &Weight, layout: Layout, scheme: Scheme) -> Option<&'static str> {
    let leaf = leaf(weight);
    match (layout, scheme, &weight.shape[..]) {
        (Layout::Bitsandbytes, _, _) if KEPT_F32.iter().any(|(f, l)| leaf == *l && family(source, f).is_some()) => {
            Some("transformers keeps this projection f32")
        }
        (Layout::Bitsandbytes, _, _) if weight.role == Role::Expert && family(source, &MERGES_EXPERTS).is_some() => {
            Some("transformers merges experts into one tensor, which it can't do with bitsandbytes weights")
        }
        (Layout::Bitsandbytes, Scheme::Nf4 { .. }, &[rows, cols])
            if !rows.is_multiple_of(32) || !cols.is_multiple_of(nf4::BLOCK) =>
        {
            Some("bitsandbytes on a CPU runs only 4-bit matrices of whole 32 rows and whole 64 columns")
        }
        (Layout::CompressedTensors, Scheme::Int(..), _) => is_initialized(source, weight)
            .then_some("transformers initializes this projection's float weight, which a quantized one has not"),
        _ => None,
    }
}

fn leaf(weight: &Weight) -> &str {
    weight.module().rsplit('.').next().unwrap_or_default()
}

fn is_initialized(source: &Source<'_>, weight: &Weight) -> bool {
    INITIALIZES.iter().any(|(f, l)| leaf(weight) == *l && family(source, &[f]).is_some())
}

/// The reason that transformers can't load a quantized weight which the user named.
fn unloadable(source: &Source<'_>, weight: &Weight, scheme: Scheme, layout: Layout) -> Option<&'static str> {
    let chooses = |c: &str| matches!(c, "gate" | "router" | "wg");
    if weight.role == Role::Router && weight.module().split('.').any(chooses) {
        return Some("is a router, which transformers computes with as floats");
    }
    let weight_only = layout == Layout::CompressedTensors && matches!(scheme, Scheme::Int(..));
    (weight_only && is_initialized(source, weight))
        .then_some("has a float weight that transformers initializes before it loads any")
}

/// Refuses plans whose artifact transformers would load wrong or not at all.
///
/// # Errors
/// [`Error::Request`] with the reason and what to do instead.
pub fn check(source: &Source<'_>, plan: &Plan) -> Result<()> {
    let Some(layout) = plan.weights.iter().map(|w| w.laid.layout).find(|l| is_loaded(*l)) else { return Ok(()) };
    let refuse = |why: String| {
        Err(Error::Request(format!("{layout}: {why}; use --layout packed, --scheme f16 or --to gguf where they serve")))
    };
    if let Some(family) = family(source, &OWN_LINEAR) {
        return refuse(format!(
            "transformers' {family} computes with its Linears' float weights, so it can't run quantized ones"
        ));
    }
    if let Some(family) = family(source, &REWRITES_PROJECTIONS) {
        return refuse(format!(
            "transformers splits, merges or moves projections of {family} while it loads them, and can't when they are quantized"
        ));
    }
    if family(source, &["llama4", "llama4_text"]).is_some()
        && let Some(w) = source.weights.iter().find(|w| w.role == Role::FusedExperts)
    {
        return refuse(format!(
            "transformers loads a quantized Llama 4 only with a Linear for each expert, and {} holds all in one",
            w.name
        ));
    }
    for planned in &plan.weights {
        let weight = &source.weights[planned.index];
        if let Some(why) = planned.scheme.and_then(|scheme| unloadable(source, weight, scheme, layout)) {
            return refuse(format!("{} {why}", weight.name));
        }
    }
    if layout != Layout::CompressedTensors {
        return Ok(());
    }
    let weight_only = plan.weights.iter().any(|w| matches!(w.scheme, Some(Scheme::Int(..))));
    if let Some(family) = family(source, &INITIALIZES_LINEARS).filter(|_| weight_only) {
        return refuse(format!(
            "transformers' {family} initializes the float weights of its Linears, which weight-only integers have not; w8a8-token and nf4 load"
        ));
    }
    if let Some(family) = family(source, &MERGES_FLOATS) {
        return refuse(format!(
            "transformers merges float weights of {family} while it loads them, and drops these beside quantized ones"
        ));
    }
    check_experts(source, plan)
}

/// Experts in compressed-tensors are merged after they are decoded, all by one scheme.
fn check_experts(source: &Source<'_>, plan: &Plan) -> Result<()> {
    let Some(family) = family(source, &MERGES_EXPERTS) else { return Ok(()) };
    let experts = || plan.weights.iter().filter(|w| source.weights[w.index].role == Role::Expert);
    let schemes: BTreeSet<Option<String>> = experts().map(|w| w.scheme.map(|s| s.to_string())).collect();
    let Some(first) = experts().find(|w| !matches!(w.scheme, Some(Scheme::Int(..)))) else {
        return match schemes.len() {
            0 | 1 => Ok(()),
            _ => Err(Error::Request(format!(
                "compressed-tensors: transformers decodes all experts of {family} by one scheme, and the plan has {}: give them one in the recipe, or use --layout packed",
                schemes.into_iter().flatten().collect::<Vec<_>>().join(", ")
            ))),
        };
    };
    let name = &source.weights[first.index].name;
    let stays = first.scheme.map_or_else(|| "would stay float".into(), |s| format!("would get {s}"));
    Err(Error::Request(format!(
        "compressed-tensors: {name} {stays}, and transformers loads experts of {family} only as weight-only integers; give '*.experts.*' such a scheme (int8-row) in a --recipe, or use --layout packed"
    )))
}

/// Linears that stay float, as loaders are told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept {
    /// Names of modules as the checkpoint has them.
    pub names: Vec<String>,
    /// Regular expressions for entire names, of modules that transformers may know under other names.
    pub patterns: Vec<String>,
}

/// The Linears of a plan that are not quantized.
pub fn kept(source: &Source<'_>, plan: &Plan) -> Kept {
    let of = |quantized: bool| {
        let weights = plan.weights.iter().filter(move |w| w.scheme.is_some() == quantized);
        weights.map(|w| &source.weights[w.index]).filter(|w| w.shape.len() == 2 && w.name.ends_with(".weight"))
    };
    let quantized: Vec<String> = of(true).flat_map(Weight::modules).map(|m| renamed(source, m)).collect();
    let quantized: Vec<&str> = quantized.iter().map(String::as_str).collect();
    // A module that can't be told from a table of embeddings counts: naming what is no Linear does no harm.
    let linears: Vec<&Weight> = of(false).filter(|w| !roles::is_known_table(w.module())).collect();
    let mut out = Kept::default();
    let mut kinds = HashSet::new();
    for weight in &linears {
        let module = weight.module();
        out.names.push(module.to_string());
        let module = &*renamed(source, module);
        // Modules that differ in numbers alone have one pattern. Experts are too many to look at each.
        if weight.role == Role::Expert || !kinds.insert(suffix_pattern(&module.split('.').collect::<Vec<_>>())) {
            continue;
        }
        let wide = match weight.role {
            Role::Tower => tower_pattern(module),
            Role::Mixer => mixer_pattern(module),
            // transformers may put a model within another, as it does with `encoder` of a speech model.
            Role::Other | Role::Embedding if roles::block(module).is_none() => {
                Some(suffix_pattern(&module.split('.').collect::<Vec<_>>()))
            }
            _ => None,
        };
        let wide = wide.filter(|p| !hits(p, &quantized));
        out.patterns.extend(wide.or_else(|| pattern(module, &quantized)));
        match weight.role {
            Role::Router => out.patterns.push(r".*\.(gate|router)(\..*)?".into()),
            Role::Tower => out.patterns.push(TOWER_PATTERN.into()),
            _ => {}
        }
    }
    let mut seen = BTreeSet::new();
    out.patterns.retain(|p| !hits(p, &quantized) && seen.insert(p.clone()));
    collapse_experts(&linears, &quantized, &mut out);
    heads(source, &quantized, &mut out);
    out
}

/// A module's name with its last component as transformers renames it.
fn renamed(source: &Source<'_>, module: &str) -> String {
    let (path, leaf) = module.rsplit_once('.').unwrap_or(("", module));
    match RENAMED.iter().find(|(f, from, _)| leaf == *from && family(source, &[f]).is_some()) {
        Some((_, _, to)) if !path.is_empty() => format!("{path}.{to}"),
        _ => module.to_string(),
    }
}

/// The output projection, which a tied model does not store.
fn heads(source: &Source<'_>, quantized: &[&str], out: &mut Kept) {
    let add = |name: &str, out: &mut Kept| {
        if !quantized.contains(&name) && !out.names.iter().any(|n| n == name) {
            out.names.push(name.into());
        }
    };
    add("lm_head", out);
    let vocabulary = source.weights.iter().filter(|w| w.role == Role::Embedding).filter_map(|w| w.shape.first()).max();
    let stored = source.weights.iter().any(|w| w.role == Role::Head && w.shape.first() >= vocabulary);
    if source.config.is_none() && !stored {
        TIED_HEADS.iter().for_each(|head| add(head, out));
    }
}

/// Puts one pattern in the place of thousands of experts' names.
fn collapse_experts(linears: &[&Weight], quantized: &[&str], out: &mut Kept) {
    let all = r"(.*\.)?experts\..*";
    if linears.iter().any(|w| w.role == Role::Expert) && !hits(all, quantized) {
        out.names.retain(|name| !entire(all).is_some_and(|r| r.is_match(name)));
        out.patterns.retain(|p| !p.contains("experts"));
        out.patterns.push(all.into());
    }
}

fn entire(pattern: &str) -> Option<Regex> {
    Regex::new(&format!("^(?:{pattern})$")).ok()
}

/// Returns whether a pattern matches any of the names.
fn hits(pattern: &str, names: &[&str]) -> bool {
    entire(pattern).is_none_or(|regex| names.iter().any(|name| regex.is_match(name)))
}

/// The shortest end of a block's module name, with any number for its numbers, that means no
/// quantized module. Modules outside blocks are known by their names alone.
fn pattern(module: &str, quantized: &[&str]) -> Option<String> {
    roles::block(module)?;
    let components: Vec<&str> = module.split('.').collect();
    (0..components.len()).rev().map(|from| suffix_pattern(&components[from..])).find(|p| !hits(p, quantized))
}

/// A pattern for what ends with the components.
fn suffix_pattern(components: &[&str]) -> String {
    let parts: Vec<String> = components
        .iter()
        .map(|c| if c.bytes().all(|b| b.is_ascii_digit()) { r"\d+".into() } else { regex::escape(c) })
        .collect();
    format!(r"(.*\.)?{}", parts.join(r"\."))
}

/// All of the tower that a module belongs to, wherever in the model that is.
fn tower_pattern(module: &str) -> Option<String> {
    let root = module.split('.').find(|c| roles::is_tower_component(c))?;
    Some(format!(r"(.*\.)?{}(\..*)?", regex::escape(root)))
}

/// All of the mixer that a block's module belongs to: from the component that names one, else from the block's child.
fn mixer_pattern(module: &str) -> Option<String> {
    let tail = roles::block(module)?.1;
    let mixer = tail.split('.').find(|c| roles::is_mixer_component(c)).or(tail.split('.').next())?;
    Some(format!(r"(.*\.)?{}(\..*)?", regex::escape(mixer)))
}

impl Kept {
    /// Entries of compressed-tensors' `ignore`: entire names, or `re:` and a pattern that Python matches at the start.
    pub fn ignore(&self) -> Vec<String> {
        let patterns = self.patterns.iter().map(|p| format!("re:{p}$"));
        self.names.iter().cloned().chain(patterns).collect()
    }

    /// Entries of bitsandbytes' `llm_int8_skip_modules`. transformers takes each as a pattern for the start of a name,
    /// up to a dot, and as the end of a name; so an entry that would mean a quantized module is bound to its entire name.
    pub fn skip_modules(&self, quantized: &[String]) -> Vec<String> {
        let loose = |name: &str| {
            quantized
                .iter()
                .any(|q| q.ends_with(name) || q.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
        };
        let names = self.names.iter().map(|name| match loose(name) {
            true => format!("{}$", regex::escape(name)),
            false => name.clone(),
        });
        names.chain(self.patterns.iter().map(|p| format!("{p}$"))).collect()
    }
}

/// The name by which a group of compressed-tensors targets a quantized module: its own, or where
/// transformers renames modules or merges experts, a pattern.
pub fn target(module: &str, source: &Source<'_>) -> String {
    let role = source.weights.iter().find(|w| w.module() == module).map(|w| w.role);
    let components: Vec<&str> = module.split('.').collect();
    match role {
        Some(Role::Expert) => {
            let at = components.iter().position(|c| *c == "experts").unwrap_or_default();
            format!("re:{}$", suffix_pattern(&components[at..]))
        }
        Some(Role::Projection) if source.weights.iter().any(|w| w.role == Role::Tower) => {
            let stack = roles::block(module).map_or(0, |(stack, _)| stack.split('.').count());
            let parts: Vec<String> = components[stack..].iter().map(|c| regex::escape(c)).collect();
            format!(r"re:(.*\.)?{}$", parts.join(r"\."))
        }
        _ => module.to_string(),
    }
}

#[cfg(test)]
#[path = "loaders_tests.rs"]
mod tests;
