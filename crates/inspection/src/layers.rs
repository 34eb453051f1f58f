//! Sensitivity: one part of a model in a scheme at a time, the divergence that this makes, and a
//! recipe that keeps the most sensitive parts in more bits.
//!
//! The whole model is converted twice, into the scheme and into the one that is kept. A model with
//! one part quantized is the reference with that part's tensors in place of its own; scoring is
//! `qeval`'s.

use crate::hybrid::{Converted, hybrid};
use crate::text::{self, Text};
use crate::{Error, Result, place};
use conversion::{Source, Weight};
use observe::Calibration;
use progress::Progress;
use schemars::JsonSchema;
use schemes::{FloatType, Scheme, outlier};
use scoring::load::Compute;
use scoring::model::LanguageModel;
use scoring::score::{self, Divergences};
use scoring::stats::{self, Bootstrap, Interval};
use scoring::{Packed, Protocol, Windows};
use serde::Serialize;
use std::path::{Path, PathBuf};
use store::Model;

/// Unit that is quantized at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// All projections of one block.
    Block,
    /// One kind of projection in all blocks.
    Kind,
    /// One matrix.
    Matrix,
}

/// Settings of a measurement.
#[derive(Debug, Clone)]
pub struct Request {
    /// The scheme.
    pub scheme: Scheme,
    /// The scheme of what is kept in more bits.
    pub keep: Scheme,
    /// Unit that is quantized at a time.
    pub by: By,
    /// Bits per weight that the recipe may take; without it half a bit more than the scheme, and at
    /// least what keeping one part takes.
    pub target_bpw: Option<f64>,
    /// The text.
    pub text: Text,
    /// Protocol that chooses the scored tokens.
    pub protocol: Protocol,
    /// Activation statistics, for schemes that need them.
    pub calibration: Option<Calibration>,
    /// Folder of passes that are kept from one run to the next.
    pub cache: Option<PathBuf>,
}

/// A divergence from the reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Divergence {
    /// Mean KL(reference || model) in nats.
    pub kl: f64,
    /// 95% interval of the mean KL.
    pub kl_ci95: Option<Interval>,
    /// Share of positions with the same most likely token.
    pub same_top1: f64,
}

/// One part of the model.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Part {
    /// Name of the part: a block's number, a kind, or a module.
    pub name: String,
    /// The block, where it is one.
    pub block: Option<usize>,
    /// The pattern of its modules in a recipe.
    pub pattern: String,
    /// Number of matrices in the part.
    pub matrices: usize,
    /// Number of weights in the part.
    pub weights: usize,
    /// The divergence with this part alone in the scheme; none where that model fails.
    pub divergence: Option<Divergence>,
    /// KL of the part over the cost of keeping it: nats for each bit per weight of the whole model.
    pub kl_per_bpw: Option<f64>,
    /// True if the recipe keeps the part in more bits.
    pub kept: bool,
    /// Bits of its weights in the scheme, and in the one that is kept.
    #[serde(skip)]
    bits: [f64; 2],
    /// Modules of the part.
    #[serde(skip)]
    modules: Vec<String>,
}

/// A recipe with what it comes to.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Recipe {
    /// Bits per weight that were allowed.
    pub target_bpw: f64,
    /// Bits per weight of the quantized matrices.
    pub bpw: f64,
    /// Parts that are kept in more bits.
    pub kept: usize,
    /// The divergence of the model that it makes.
    pub divergence: Option<Divergence>,
    /// The file's text.
    pub toml: String,
}

/// Results of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Layers {
    /// The model.
    pub model: String,
    /// The scheme.
    pub scheme: String,
    /// The scheme of what is kept in more bits.
    pub keep: String,
    /// Unit that was quantized at a time.
    pub by: By,
    /// The text.
    pub text: String,
    /// Description of the scored tokens.
    pub rule: String,
    /// Bits per weight with everything in the scheme.
    pub bpw: f64,
    /// The divergence with everything in the scheme.
    pub all: Option<Divergence>,
    /// The parts, the most sensitive first.
    pub parts: Vec<Part>,
    /// The recipe.
    pub recipe: Recipe,
    /// Things that a user should know.
    pub notes: Vec<String>,
}

/// Measures how sensitive each part of a model is to a scheme.
///
/// # Errors
/// When the model can't be opened, converted or scored.
pub fn measure(path: &Path, request: &Request, progress: &dyn Progress) -> Result<Layers> {
    check(request)?;
    let model = store::open(path)?;
    let source = Source::new(&model)?;
    let mut parts = parts(&source, request)?;
    let weights: usize = parts.iter().map(|p| p.weights).sum();
    let bpw = parts.iter().map(|p| p.bits[0]).sum::<f64>() / weights as f64;
    if let Some(target) = request.target_bpw.filter(|target| *target < bpw) {
        let what = format!("--target-bpw {target} is less than {} takes alone, {bpw:.3}", request.scheme);
        return Err(Error::Request(what));
    }
    if parts.iter().any(|part| part.extra() <= 0.0) {
        let what = format!("--keep {} takes no more bits than {}: name one that does", request.keep, request.scheme);
        return Err(Error::Request(what));
    }
    let low = Converted::new(&source, request.scheme, request.calibration.as_ref(), progress)?;
    let high = Converted::new(&source, request.keep, request.calibration.as_ref(), progress)?;
    let bench = Bench::new(path, &model, request)?;

    let mut models = Vec::with_capacity(parts.len() + 1);
    for part in &parts {
        models.push(hybrid(&model, &[(&low.model, &part.modules)])?);
    }
    let every: Vec<String> = parts.iter().flat_map(|p| p.modules.clone()).collect();
    models.push(hybrid(&model, &[(&low.model, &every)])?);
    let mut found = bench.score(&models, progress)?;
    let all = found.pop().flatten();
    for (part, divergence) in parts.iter_mut().zip(found) {
        part.divergence = divergence;
        part.kl_per_bpw = divergence.map(|d| d.kl * weights as f64 / part.extra());
    }
    // What can't be run at all is more sensitive than anything.
    let kl = |part: &Part| part.divergence.map_or(f64::INFINITY, |d| d.kl);
    parts.sort_by(|a, b| kl(b).total_cmp(&kl(a)));

    let cheapest = parts.iter().map(Part::extra).fold(f64::INFINITY, f64::min);
    // Rounding aside, so that one part fits.
    let target = request.target_bpw.unwrap_or((bpw + 0.5).max(bpw + cheapest / weights as f64 + 1e-9));
    let (kept, mixed) = keep(&mut parts, target, weights);
    let modules = |kept: bool| parts.iter().filter(|p| p.kept == kept).flat_map(|p| p.modules.clone()).collect();
    let (kept_modules, others): (Vec<String>, Vec<String>) = (modules(true), modules(false));
    let divergence = match kept {
        0 => all,
        _ => {
            let mixed = hybrid(&model, &[(&low.model, &others), (&high.model, &kept_modules)])?;
            bench.score(&[mixed], progress)?.pop().flatten()
        }
    };
    let unchanged = (kept == 0).then(|| {
        let least = bpw + cheapest / weights as f64;
        format!(
            "The recipe changes nothing: {target:.3} bits per weight keep no part in more bits. The smallest step takes \
             {least:.3} (--target-bpw)."
        )
    });
    let recipe = Recipe { target_bpw: target, bpw: mixed, kept, divergence, toml: toml(path, request, &parts, mixed) };
    let beyond = text::beyond_training(&model, bench.windows.longest())?;
    Ok(Layers {
        model: path.display().to_string(),
        scheme: request.scheme.to_string(),
        keep: request.keep.to_string(),
        by: request.by,
        text: request.text.name.clone(),
        rule: bench.windows.rule.clone(),
        bpw,
        all,
        parts,
        recipe,
        notes: unchanged
            .into_iter()
            .chain(source.warnings.iter().cloned())
            .chain(beyond)
            .chain(bench.compute.cache.as_ref().and_then(|cache| cache.note()))
            .collect(),
    })
}

fn check(request: &Request) -> Result<()> {
    for scheme in [request.scheme, request.keep] {
        if matches!(scheme, Scheme::Float(_)) {
            return Err(Error::Request(format!("{scheme} is no quantization")));
        }
        if scheme.needs_calibration() && request.calibration.is_none() {
            let what =
                format!("{scheme} needs activation statistics: give --calibration FILE (qinspect activations --save)");
            return Err(Error::Request(what));
        }
    }
    if request.target_bpw.is_some_and(|bpw| !(bpw.is_finite() && bpw > 0.0)) {
        return Err(Error::Request("--target-bpw takes a number of bits above 0".into()));
    }
    Ok(request.protocol.check()?)
}

/// The parts of a model, in its order.
fn parts(source: &Source<'_>, request: &Request) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for weight in source.weights.iter().filter(|w| w.is_block_projection()) {
        let module = weight.module();
        let (name, pattern) = named(module, request.by);
        let bits = [request.scheme, request.keep].map(|scheme| total_bits(weight, scheme, request));
        let at = parts.iter().position(|p| p.name == name).unwrap_or_else(|| {
            let block = if request.by == By::Kind { None } else { place::block(module) };
            parts.push(Part {
                name,
                block,
                pattern,
                matrices: 0,
                weights: 0,
                divergence: None,
                kl_per_bpw: None,
                kept: false,
                bits: [0.0; 2],
                modules: Vec::new(),
            });
            parts.len() - 1
        });
        let part = &mut parts[at];
        part.matrices += 1;
        part.weights += weight.count();
        part.bits[0] += bits[0];
        part.bits[1] += bits[1];
        part.modules.push(module.into());
    }
    if parts.is_empty() {
        return Err(Error::Model(format!("{}: has no linear projections in blocks", source.model.path.display())));
    }
    Ok(parts)
}

/// Returns the name of a module's part, and the pattern of the part's modules.
fn named(module: &str, by: By) -> (String, String) {
    match by {
        By::Matrix => (module.into(), module.into()),
        By::Kind => (place::kind(module).into(), format!("*.{}", place::kind(module))),
        By::Block => match place::block(module) {
            Some(block) => {
                let prefix: Vec<&str> = module.split('.').take_while(|part| part.parse::<usize>().is_err()).collect();
                (block.to_string(), format!("{}.{block}.*", prefix.join(".")))
            }
            None => (module.into(), module.into()),
        },
    }
}

fn total_bits(weight: &Weight, scheme: Scheme, request: &Request) -> f64 {
    let &[rows, cols] = &weight.shape[..] else { return 0.0 };
    let stats = request.calibration.as_ref().and_then(|c| c.module(weight.module()));
    let columns = stats.map_or(0, |s| outlier::outlier_columns(s, outlier::THRESHOLD).len());
    scheme.total_bits(rows, cols, columns, FloatType::F16)
}

impl Part {
    /// Bits that keeping it costs.
    fn extra(&self) -> f64 {
        self.bits[1] - self.bits[0]
    }
}

/// Marks the parts with the most divergence for each bit that keeping them costs, as far as the
/// target goes; gives how many, and the bits per weight. A part that doesn't fit is passed over.
fn keep(parts: &mut [Part], target: f64, weights: usize) -> (usize, f64) {
    let mut bits: f64 = parts.iter().map(|p| p.bits[0]).sum();
    let mut order: Vec<&mut Part> = parts.iter_mut().collect();
    // What can't be run at all comes first.
    let gain = |part: &Part| part.kl_per_bpw.unwrap_or(f64::INFINITY);
    order.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    let mut kept = 0;
    for part in order {
        let more = bits + part.extra();
        if more <= target * weights as f64 {
            part.kept = true;
            (bits, kept) = (more, kept + 1);
        }
    }
    (kept, bits / weights as f64)
}

/// The recipe's file.
fn toml(path: &Path, request: &Request, parts: &[Part], bpw: f64) -> String {
    let kept: Vec<&Part> = parts.iter().filter(|p| p.kept).collect();
    let name = path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy());
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut text = format!(
        "# {name}: {} of {} parts in {}, {bpw:.3} bits per weight (qinspect layers)\n\
         default = \"{}\"\n",
        kept.len(),
        parts.len(),
        request.keep,
        request.scheme
    );
    for part in kept {
        text.push_str(&format!("\n[[rule]]\nmatch = \"{}\"\nscheme = \"{}\"\n", part.pattern, request.keep));
    }
    text
}

/// The reference and the windows, ready to score models.
struct Bench {
    name: String,
    reference: Packed,
    compute: Compute,
    windows: Windows,
}

impl Bench {
    fn new(path: &Path, model: &Model, request: &Request) -> Result<Self> {
        let name = path.display().to_string();
        let compute = Compute::on_cpu(None).with_cache(request.cache.as_deref())?;
        let encoder = text::encoder(model)?;
        let ids = encoder.encode(&request.text.text)?.ids;
        if ids.is_empty() {
            return Err(Error::Model(format!("{}: the text is empty", request.text.name)));
        }
        let windows = request.protocol.cut(&ids, encoder.bos(request.protocol.bos)?)?;
        Ok(Bench { reference: Packed::load(name.as_str(), model, &compute)?, name, compute, windows })
    }

    /// The divergence of each model; none for one that computes NaN or fails.
    fn score(&self, models: &[Model], progress: &dyn Progress) -> Result<Vec<Option<Divergence>>> {
        let load = |model| Packed::load(self.name.as_str(), model, &self.compute);
        let loaded = models.iter().map(load).collect::<Result<Vec<Packed>, scoring::Error>>()?;
        let artifacts: Vec<&dyn LanguageModel> = loaded.iter().map(|m| m as &dyn LanguageModel).collect();
        let scores = score::score((&self.name, &self.reference), &artifacts, &self.windows.windows, progress)?;
        Ok(self.summaries(scores.artifacts.into_iter().map(|scored| scored.ok()).collect()))
    }

    /// Means, and intervals over the same resamples for all.
    fn summaries(&self, scored: Vec<Option<Divergences>>) -> Vec<Option<Divergence>> {
        let columns: Vec<Vec<f64>> = scored.iter().flatten().map(|d| stats::block_sums(&d.kl)).collect();
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let weights = stats::block_sums(&vec![1.0; self.windows.scored()]);
        let mut intervals = Bootstrap::new(0).ratios(&views, &weights).into_iter();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let summary = |d: Divergences| Divergence {
            kl: mean(&d.kl),
            kl_ci95: intervals.next().flatten(),
            same_top1: mean(&d.same_top),
        };
        let mut summary = summary;
        scored.into_iter().map(|d| d.map(&mut summary)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, kl: f64) -> Part {
        Part {
            name: name.into(),
            block: name.parse().ok(),
            pattern: format!("model.layers.{name}.*"),
            matrices: 7,
            weights: 100,
            divergence: Some(Divergence { kl, kl_ci95: None, same_top1: 1.0 }),
            kl_per_bpw: Some(kl),
            kept: false,
            bits: [400.0, 800.0],
            modules: Vec::new(),
        }
    }

    #[test]
    fn names_and_patterns() {
        let module = "model.layers.12.mlp.down_proj";
        assert_eq!(named(module, By::Block), ("12".into(), "model.layers.12.*".into()));
        assert_eq!(named(module, By::Kind), ("down_proj".into(), "*.down_proj".into()));
        assert_eq!(named(module, By::Matrix), (module.into(), module.into()));
    }

    #[test]
    fn the_most_sensitive_are_kept_as_far_as_the_target_goes() {
        let mut parts: Vec<Part> = (0..10).map(|i| part(&i.to_string(), 10.0 - f64::from(i))).collect();
        assert_eq!(keep(&mut parts, 4.8, 1000), (2, 4.8));
        assert_eq!(parts.iter().filter(|p| p.kept).map(|p| p.name.as_str()).collect::<Vec<_>>(), ["0", "1"]);
        let mut parts: Vec<Part> = (0..10).map(|i| part(&i.to_string(), 1.0)).collect();
        assert_eq!(keep(&mut parts, 4.3, 1000), (0, 4.0));
        assert_eq!(keep(&mut parts, 99.0, 1000), (10, 8.0));
    }

    #[test]
    fn small_parts_that_matter_for_their_size_are_kept_before_large_ones() {
        let mut parts: Vec<Part> = vec![part("0", 3.0), part("1", 2.0), part("2", 1.0)];
        (parts[0].bits, parts[0].kl_per_bpw) = ([4000.0, 8000.0], Some(0.3));
        // 400 bits more fit, which the two small ones take; the large one is passed over.
        let (kept, bpw) = keep(&mut parts, 5.6, 1000);
        assert_eq!((kept, bpw), (2, 5.6));
        assert_eq!(parts.iter().map(|p| p.kept).collect::<Vec<_>>(), [false, true, true]);
    }
}
