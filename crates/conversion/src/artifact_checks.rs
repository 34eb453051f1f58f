//! Checks on a whole artifact: layout against container, companions of a weight, one quantization method per config.json.

use crate::error::{Error, Misfit, Result};
use crate::layout::{Laid, Layout};
use crate::plan::{Plan, Settings, Source, Target};
use crate::roles::Role;
use crate::source::Weight;
use crate::wording::first_names;
use schemes::Scheme;
use std::collections::{BTreeMap, HashMap};

/// Refuses a layout that has no place in the container.
///
/// # Errors
/// [`Error::Request`] with the layouts that do.
pub fn check_layout(settings: &Settings) -> Result<()> {
    if let Some(mix) = settings.mix
        && settings.emulate.is_none()
        && (settings.target != Target::Gguf || settings.layout.is_some_and(|layout| layout != Layout::Ggml))
    {
        let what =
            "is a mixture of ggml's types, which only GGUF and its own layout hold: use --to gguf, without --layout";
        return Err(Error::Request(format!("{mix} {what}")));
    }
    let (container, fit) = match (settings.target, settings.layout) {
        (Target::Gguf, Some(Layout::CompressedTensors | Layout::Bitsandbytes)) => ("GGUF", "ggml and packed"),
        (Target::Safetensors, Some(Layout::Ggml)) => ("safetensors", "compressed-tensors, bitsandbytes and packed"),
        _ => return Ok(()),
    };
    let layout = settings.layout.map(|l| l.to_string()).unwrap_or_default();
    Err(Error::Request(format!("--layout {layout} has no place in {container}: {fit} have, or choose another --to")))
}

/// The reason that a layout of Linear modules can't hold `weight`, and the way out; none where it can.
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

/// Tensors under the names of modules, by module; weights and biases are not among them.
pub fn companions(weights: &[Weight]) -> HashMap<&str, &str> {
    let mut out = HashMap::new();
    for name in weights.iter().map(|w| w.name.as_str()) {
        for (at, _) in name.match_indices('.').filter(|(at, _)| !matches!(&name[*at..], ".weight" | ".bias")) {
            out.entry(&name[..at]).or_insert(name);
        }
    }
    out
}

/// Refuses to quantize a weight beside which readers would find a tensor that they don't know: they can't tell
/// whether it changes the weights.
pub fn check_companions(weight: &Weight, beside: &HashMap<&str, &str>, laid: Laid) -> Result<Laid, Misfit> {
    let quantized = !matches!(laid.layout, Layout::Plain | Layout::Ggml);
    match beside.get(weight.module()).filter(|_| quantized) {
        Some(name) => Err(Misfit {
            weight: weight.name.clone(),
            shape: weight.shape.clone(),
            why: format!("{name} stands beside it, which readers of quantized weights don't know"),
            instead: "leave it out (--exclude), or use --scheme f16".into(),
        }),
        None => Ok(laid),
    }
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

/// Notes on weights that serve as two modules, or that are quantized a second time.
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

/// Kinds of matrices that every model keeps float: no news.
const ALWAYS_KEPT: [Role; 2] = [Role::Embedding, Role::Head];

/// Names the matrices that stay float in a quantized artifact, by what they do in the model.
pub fn kept_matrices(plan: &Plan, source: &Source<'_>) -> Vec<String> {
    if plan.weights.iter().all(|w| w.scheme.is_none()) {
        return Vec::new();
    }
    let mut kinds: BTreeMap<Role, Vec<&str>> = BTreeMap::new();
    for w in plan.weights.iter().filter(|w| w.scheme.is_none()) {
        let weight = &source.weights[w.index];
        let matrix = weight.shape.len() == 2 && weight.name.ends_with(".weight") && !weight.name.contains("norm");
        let news = !ALWAYS_KEPT.contains(&weight.role) || weight.role == Role::Head && weight.module() != "lm_head";
        let news = news && !weight.role.is_quantized_by_default();
        if matrix && news || weight.role == Role::FusedExperts {
            kinds.entry(weight.role).or_default().push(weight.module());
        }
    }
    let described = kinds.iter().map(|(role, names)| {
        let expected = matches!(role, Role::Router | Role::Head | Role::Tower | Role::Mixer);
        let stays = match names.len() {
            1 => format!("1 {role} stays"),
            n => format!("{n} {} stay", role.plural()),
        };
        format!("{}{stays} float: {}", if expected { "" } else { "warning: " }, first_names(names))
    });
    described.collect()
}

/// Notes on weights that stay float although the scheme alone would quantize them.
pub fn kept_for_loaders(plan: &Plan, source: &Source<'_>, settings: &Settings) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    if settings.mix.is_some() {
        return Vec::new();
    }
    for w in plan.weights.iter().filter(|w| w.scheme.is_none()) {
        let weight = &source.weights[w.index];
        let wanted = settings.rules.scheme_for(weight, plan.scheme).filter(|s| !matches!(s, Scheme::Float(_)));
        if let Some(why) = wanted.and_then(|scheme| source.unloadable(weight, scheme, settings)) {
            reasons.entry(why).or_default().push(weight.module());
        }
    }
    let lines = reasons.iter().map(|(why, names)| {
        let matrices = if names.len() == 1 { "matrix stays" } else { "matrices stay" };
        format!(
            "warning: {} {matrices} float ({}): {why}; --include quantizes them all the same",
            names.len(),
            first_names(names)
        )
    });
    lines.collect()
}

/// The error of a plan that quantizes nothing.
pub fn nothing_to_quantize(source: &Source<'_>, scheme: Scheme, settings: &Settings) -> Error {
    let projections = || source.weights.iter().filter(|w| w.role.is_quantized_by_default());
    let transposed = source.weights.iter().find(|w| w.role == Role::Transposed);
    let unloadable = projections().find_map(|w| Some((w, source.unloadable(w, scheme, settings)?)));
    let why = match (transposed, unloadable, projections().next()) {
        (Some(w), _, _) => format!(
            "{} and its kind are stored [in, out], as GPT-2's Conv1D are, which no quantized layout here holds; use --scheme f16, bf16 or f32",
            w.name
        ),
        (_, Some((w, why)), _) => format!("{}: {why}; use --layout packed", w.name),
        (_, _, Some(_)) => "the rules leave out every projection; see --include and --dry-run".into(),
        _ => "no tensor is known as a projection of a text block; name matrices with --include (--dry-run --scheme f16 lists them), or use --scheme f16".into(),
    };
    Error::Request(format!("no weight would be quantized: {why}"))
}
