//! Self-test of a device against the CPU: every kernel, products in every form, and whole models in every scheme.

use crate::load::Loaded;
use crate::model::Continuation;
use crate::verdict::DESTROYED_RATIO;
use crate::{Packed, Result, Window, score};
use progress::Progress;
use runtime::selftest::Checked;
use runtime::{ComputeType, FEW_TOKENS, KvType};
use schemars::JsonSchema;
use schemes::Scheme;
use serde::Serialize;

/// Version of the JSON.
pub const VERSION: u32 = 2;

/// Single tokens that models are compared over.
const STEPS: usize = 24;

/// Results of a self-test.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SelfTest {
    /// Version of this structure.
    pub version: u32,
    /// The device.
    pub device: String,
    /// Precision of the device's matrix products.
    pub dtype: String,
    /// The kernels: on the CPU, their mirrors.
    pub kernels: Vec<Group>,
    /// Products of layers, by form.
    pub products: Vec<Group>,
    /// Models on both devices; none where the device is the CPU.
    pub models: Vec<Agreement>,
    /// Models that could not be run, a line each.
    pub failed: Vec<String>,
}

/// Comparisons of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Group {
    /// The kernel or the form.
    pub name: String,
    /// Number of comparisons.
    pub cases: usize,
    /// Numbers that were compared.
    pub numbers: usize,
    /// Numbers whose bits are not the mirror's; none where there is no mirror.
    pub differing: Option<usize>,
    /// The largest difference to the definition in f64, as a share of what it may be.
    pub error: Option<f64>,
    /// The shapes that failed, and how.
    pub failed: Vec<String>,
}

/// A model on the CPU and on the device.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Agreement {
    /// Scheme of the model.
    pub scheme: String,
    /// Perplexity on the CPU.
    pub cpu: f64,
    /// On the device.
    pub device: f64,
    /// The largest difference of logits of single tokens through an f16 cache, as a share of the
    /// largest logit.
    pub decode_f16: f64,
    /// Through an int8 cache.
    pub decode_int8: f64,
    /// Perplexity there is beyond ten times that of the reference: what is left is noise, and it is
    /// not held to the tolerances.
    pub destroyed: bool,
    /// The scheme quantizes activations: the last bit of a sum decides where a value is rounded to, so
    /// that two orders of summation give two models. It is held to [`SENSITIVE`].
    pub sensitive: bool,
    /// Matrices that the device holds decoded.
    pub decoded: usize,
    /// True if the differences are within the tolerances.
    pub passed: bool,
}

impl SelfTest {
    /// Lists the failed checks, a line each.
    pub fn problems(&self) -> Vec<String> {
        let groups = self.kernels.iter().chain(&self.products);
        let groups = groups.flat_map(|g| g.failed.iter().cloned());
        let models = self.models.iter().filter(|m| !m.passed);
        let models = models.map(|m| format!("{}: the devices disagree", m.scheme));
        groups.chain(models).chain(self.failed.iter().cloned()).collect()
    }
}

/// Comparisons by what they compare, in the order of the first.
pub fn groups(checked: &[Checked]) -> Vec<Group> {
    let mut all: Vec<Group> = Vec::new();
    for check in checked {
        let at = all.iter().position(|g| g.name == check.what).unwrap_or_else(|| {
            let (name, failed) = (check.what.clone(), Vec::new());
            all.push(Group { name, cases: 0, numbers: 0, differing: None, error: None, failed });
            all.len() - 1
        });
        let group = &mut all[at];
        group.cases += 1;
        group.numbers += check.numbers;
        group.differing = add(group.differing, check.differing, |a, b| a + b);
        group.error = add(group.error, check.error, |a, b| if b.is_nan() { b } else { a.max(b) });
        if !check.passed() {
            let how = check.failure.as_deref().unwrap_or("beyond its tolerance");
            group.failed.push(format!("{}: {how}", check.case));
        }
    }
    all
}

fn add<T>(a: Option<T>, b: Option<T>, both: impl Fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(both(a, b)),
        (a, b) => a.or(b),
    }
}

/// Tolerance for perplexities and logits of schemes that quantize activations, as a share: four times the effect of a
/// perturbation of 1e-6 on the most sensitive of them.
pub const SENSITIVE: f64 = 0.05;

/// Returns whether a scheme, or one of several joined by `+`, quantizes activations.
fn quantizes_activations(scheme: &str) -> bool {
    scheme.split('+').any(|name| name.parse().is_ok_and(Scheme::quantizes_activations))
}

/// Returns the tolerance for perplexities, as a share.
pub fn tolerance(compute: ComputeType) -> f64 {
    match compute {
        ComputeType::F32 => 1e-3,
        ComputeType::F16 => 5e-3,
        ComputeType::BF16 => 3e-2,
    }
}

/// Returns the tolerance for logits of single tokens, as a share of the largest: all products are f32, and a rounding
/// of a cached value may fall the other way.
fn decode_tolerance(kv: KvType) -> f64 {
    match kv {
        KvType::F16 => 5e-3,
        KvType::Int8 => 2e-2,
    }
}

/// Compares a model on two devices; `best` is the reference's perplexity on the CPU.
///
/// # Errors
/// When it can't be run, or computes NaN.
pub fn agreement(
    (cpu, device): (&Loaded, &Loaded),
    windows: &[Window],
    compute: ComputeType,
    best: Option<f64>,
    progress: &dyn Progress,
) -> Result<Agreement> {
    let perplexity = |loaded: &Loaded| -> Result<f64> {
        let nll = score::losses((&loaded.size.scheme, &loaded.model), windows, progress)?.nll;
        Ok((nll.iter().sum::<f64>() / nll.len().max(1) as f64).exp())
    };
    let tokens = windows.first().map_or(&[][..], |w| &w.tokens[..w.tokens.len().min(2 * STEPS)]);
    let decode = |kv| difference(&cpu.model, &device.model, tokens, kv);
    let (on_cpu, on_device) = (perplexity(cpu)?, perplexity(device)?);
    let (decode_f16, decode_int8) = (decode(KvType::F16)?, decode(KvType::Int8)?);
    let destroyed = best.is_some_and(|best| on_cpu > DESTROYED_RATIO * best);
    let sensitive = quantizes_activations(&cpu.size.scheme);
    let at_least = if sensitive { SENSITIVE } else { 0.0 };
    let near = (on_device / on_cpu - 1.0).abs() <= tolerance(compute).max(at_least)
        && decode_f16 <= decode_tolerance(KvType::F16).max(at_least)
        && decode_int8 <= decode_tolerance(KvType::Int8).max(at_least);
    Ok(Agreement {
        scheme: cpu.size.scheme.clone(),
        cpu: on_cpu,
        device: on_device,
        decode_f16,
        decode_int8,
        destroyed,
        sensitive,
        decoded: device.model.transformer().decoded_matrices(),
        passed: destroyed || near,
    })
}

/// The largest difference of the logits after each of the last tokens, which are fed one at a time.
fn difference(a: &Packed, b: &Packed, tokens: &[u32], kv: KvType) -> Result<f64> {
    let (prompt, single) = tokens.split_at(tokens.len().saturating_sub(STEPS));
    let mut sessions = [a.session_of(kv, tokens.len())?, b.session_of(kv, tokens.len())?];
    for session in &mut sessions {
        // Of no more at a time the products are f32 on a GPU, whatever is asked for.
        for part in prompt.chunks(FEW_TOKENS) {
            session.extend(part, 0)?;
        }
    }
    let mut worst = 0f64;
    for token in single {
        let [a, b] = &mut sessions;
        let (a, b) = (a.extend(&[*token], 1)?, b.extend(&[*token], 1)?);
        let largest = a.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
        let off = a
            .iter()
            .zip(&b)
            .fold(0f32, |m, (a, b)| if (a - b).is_nan() { f32::INFINITY } else { m.max((a - b).abs()) });
        worst = worst.max(f64::from(off / largest));
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(what: &str, error: f64) -> Checked {
        Checked {
            what: what.into(),
            case: format!("{what} 3 x 5"),
            numbers: 15,
            differing: Some(0),
            error: Some(error),
            failure: None,
        }
    }

    #[test]
    fn schemes_that_quantize_activations_are_known() {
        for (name, quantizes) in [("int8-row", false), ("f16", false), ("w8a8-token", true), ("f16+int8-outlier", true)]
        {
            assert_eq!(quantizes_activations(name), quantizes, "{name}");
        }
    }

    #[test]
    fn comparisons_are_summed_up_by_name() {
        let refused = Checked { failure: Some("no such kernel".into()), ..checked("b", 0.0) };
        let all = [checked("a", 0.25), checked("b", 0.5), checked("a", 2.0), checked("b", f64::NAN), refused];
        let found = groups(&all);
        assert_eq!((found[0].cases, found[0].numbers, found[0].error), (2, 30, Some(2.0)));
        assert_eq!(found[0].failed, ["a 3 x 5: beyond its tolerance"]);
        assert_eq!(found[1].failed, ["b 3 x 5: beyond its tolerance", "b 3 x 5: no such kernel"]);
        let test = SelfTest {
            version: VERSION,
            device: "cpu".into(),
            dtype: "f32".into(),
            kernels: found,
            products: Vec::new(),
            models: Vec::new(),
            failed: vec!["nf4: out of memory".into()],
        };
        let problems = test.problems();
        assert_eq!(problems.len(), 4);
        assert_eq!(problems[2..], ["b 3 x 5: no such kernel", "nf4: out of memory"]);
    }
}
