//! What a container and its readers take as a whole, beyond what each weight's layout holds.

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::plan::{Plan, Settings, Source, Target};
use crate::source::Weight;
use schemes::Scheme;

/// Refuses a layout that has no place in the container.
///
/// # Errors
/// [`Error::Request`] with the layouts that do.
pub fn check_layout(settings: &Settings) -> Result<()> {
    let (container, fit) = match (settings.target, settings.layout) {
        (Target::Gguf, Some(Layout::CompressedTensors | Layout::Bitsandbytes)) => ("GGUF", "ggml and packed"),
        (Target::Safetensors, Some(Layout::Ggml)) => ("safetensors", "compressed-tensors, bitsandbytes and packed"),
        _ => return Ok(()),
    };
    let layout = settings.layout.map(|l| l.to_string()).unwrap_or_default();
    Err(Error::Request(format!("--layout {layout} has no place in {container}: {fit} have, or choose another --to")))
}

/// Why a layout of Linear modules can't hold `weight`, if it can't.
pub fn no_linear_module(source: &Source<'_>, weight: &Weight, layout: Layout) -> Option<(String, String)> {
    if !matches!(layout, Layout::CompressedTensors | Layout::Bitsandbytes) {
        return None;
    }
    let why = if weight.tied {
        format!("is the embedding, to which lm_head is tied, and {layout} quantizes Linear modules only")
    } else if weight.is_embedding() {
        format!("is an embedding, and {layout} quantizes Linear modules only")
    } else if weight.module() == "lm_head" && source.config.as_ref().is_some_and(|c| c.tie_word_embeddings) {
        format!("is tied to the embedding, which loaders of {layout} put in its place")
    } else {
        return None;
    };
    Some((why, "leave it out, or use --layout packed or --to gguf".into()))
}

/// Refuses a directory whose weights need two quantization methods: its config.json can name
/// one. bitsandbytes' settings count as well, as they are the whole model's too.
///
/// # Errors
/// [`Error::Methods`].
pub fn check_one_method(plan: &Plan, source: &Source<'_>) -> Result<()> {
    if plan.target == Target::Gguf {
        return Ok(());
    }
    let mut methods: Vec<(String, Vec<String>)> = Vec::new();
    for w in &plan.weights {
        let Some(scheme) = w.scheme else { continue };
        let method = match w.laid.layout {
            Layout::Bitsandbytes => format!("bitsandbytes ({})", bitsandbytes_setting(scheme)),
            layout => layout.to_string(),
        };
        let name = source.weights[w.index].name.clone();
        match methods.iter_mut().find(|m| m.0 == method) {
            Some(m) => m.1.push(name),
            None => methods.push((method, vec![name])),
        }
    }
    if methods.len() > 1 { Err(Error::Methods(methods)) } else { Ok(()) }
}

fn bitsandbytes_setting(scheme: Scheme) -> String {
    match scheme {
        Scheme::Nf4 { .. } => scheme.to_string(),
        _ => "int8".into(),
    }
}

/// One line about weights that ggml blocks can't hold, when nobody asked for the packed layout.
pub fn packed_in_gguf(plan: &Plan, source: &Source<'_>, settings: &Settings) -> Option<String> {
    if plan.target != Target::Gguf || settings.layout.is_some() {
        return None;
    }
    let packed: Vec<&str> = plan
        .weights
        .iter()
        .filter(|w| w.laid.layout == Layout::Packed)
        .map(|w| source.weights[w.index].name.as_str())
        .collect();
    (!packed.is_empty()).then(|| {
        format!(
            "warning: ggml blocks can't hold {} of the {} quantized weights, which get the packed layout ({}): llama.cpp will not load the file",
            packed.len(),
            plan.weights.iter().filter(|w| w.scheme.is_some()).count(),
            first_names(&packed)
        )
    })
}

/// What to know of weights that serve as two modules, or are quantized a second time.
pub fn of_sources(plan: &Plan, source: &Source<'_>) -> Vec<String> {
    let quantized = || plan.weights.iter().filter(|w| w.scheme.is_some()).map(|w| &source.weights[w.index]);
    let mut notes = Vec::new();
    if let Some(weight) = quantized().find(|w| w.tied) {
        notes.push(format!("lm_head is tied to {}: both are quantized, as one tensor", weight.module()));
    }
    let again = quantized().filter(|w| w.float.is_none()).count();
    if again > 0 {
        notes.push(format!(
            "{} quantized in the source already: errors are relative to what the source decodes to",
            if again == 1 { "1 weight is".into() } else { format!("{again} weights are") }
        ));
    }
    notes
}

/// `1 weight`, `2 weights`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The first names of a list, and that there are more.
pub fn first_names<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(2).map(AsRef::as_ref).collect();
    let more = if names.len() > shown.len() { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}
