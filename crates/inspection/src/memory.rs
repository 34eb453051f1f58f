//! Memory fit on a device: weights, cache, users.
//!
//! memory = weights + cache bytes per token x tokens + overhead. Where only a number of parameters
//! is known, each counts at the scheme's nominal bits; of a model the real bytes count.

use crate::{Error, Result};
use runtime::KvType;
use schemars::JsonSchema;
use schemes::{Bits, FloatType, GgmlType, Grouping, Scheme};
use serde::Serialize;
use std::path::Path;

/// Bytes of a GiB.
pub const GIB: f64 = (1u64 << 30) as f64;

/// More than any device has, in GiB.
const MOST_GIB: f64 = 1e6;

/// Numbers that decide the size of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CacheShape {
    /// Blocks.
    pub layers: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
}

impl CacheShape {
    /// Bytes of a token in a cache of this type.
    pub fn bytes_per_token(self, kv: KvType) -> u64 {
        kv.bytes_of(self.layers as usize, self.kv_heads as usize, self.head_dim as usize) as u64
    }
}

/// Settings of a calculation.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Memory of the devices, in GiB.
    pub vram: Vec<f64>,
    /// Memory for everything besides weights and cache, in GiB.
    pub overhead: f64,
    /// Tokens that each of several users has.
    pub context: u64,
    /// The schemes.
    pub schemes: Vec<Scheme>,
}

/// Weights in one form.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The scheme, or `as stored`.
    pub scheme: String,
    /// Bytes of the weights.
    pub bytes: f64,
}

/// Contexts and users that fit on one device.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Fit {
    /// Memory of the device.
    pub vram_gib: f64,
    /// Bytes that are left for the cache; negative when the weights don't fit.
    pub left_bytes: f64,
    /// Tokens of one user with an F16 cache; none when the weights don't fit.
    pub context_f16: Option<u64>,
    /// Tokens of context that fit with an INT8 cache.
    pub context_int8: Option<u64>,
    /// Users that each have the asked-for context, with an F16 cache.
    pub users_f16: Option<u64>,
    /// Users that fit with an INT8 cache.
    pub users_int8: Option<u64>,
}

/// Contexts and users that fit with the weights in one scheme.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The scheme, or `as stored`.
    pub scheme: String,
    /// Bits of weights over all parameters.
    pub bits_per_parameter: f64,
    /// Bytes of the weights.
    pub weight_bytes: f64,
    /// By device, in the order that was asked.
    pub fits: Vec<Fit>,
}

/// Results of a calculation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Memory {
    /// The model, where one was given.
    pub model: Option<String>,
    /// Number of parameters.
    pub parameters: u64,
    /// Blocks and heads.
    pub cache: CacheShape,
    /// Cache bytes per token in F16.
    pub cache_bytes_per_token_f16: u64,
    /// Cache bytes per token in INT8, with its scales.
    pub cache_bytes_per_token_int8: u64,
    /// Context that the model was trained for, where it is known.
    pub trained_context: Option<u64>,
    /// Tokens of each user.
    pub context: u64,
    /// Memory for everything else.
    pub overhead_gib: f64,
    /// By scheme.
    pub rows: Vec<Row>,
    /// Things that a user should know.
    pub notes: Vec<String>,
}

/// The schemes that are shown when none are named.
pub fn default_schemes() -> Vec<Scheme> {
    use {Bits::*, Grouping::*};
    vec![
        Scheme::Float(FloatType::F16),
        Scheme::Int(Eight, Row),
        Scheme::Int(Eight, Group(128)),
        Scheme::Ggml(GgmlType::Q8_0),
        Scheme::Ggml(GgmlType::Q6_K),
        Scheme::Ggml(GgmlType::Q5_K),
        Scheme::Ggml(GgmlType::Q4_K),
        Scheme::Int(Four, Group(32)),
        Scheme::Int(Four, Group(64)),
        Scheme::Nf4 { double_quant: false },
        Scheme::Nf4 { double_quant: true },
        Scheme::Int(Four, Group(128)),
        Scheme::Int(Four, Row),
    ]
}

/// Bits of a weight, without what depends on a matrix' shape: a scale for a row counts as nothing.
pub fn nominal_bits(scheme: Scheme) -> f64 {
    match scheme {
        Scheme::Float(ty) => 8.0 * ty.size() as f64,
        Scheme::Nf4 { double_quant: false } => 4.0 + 16.0 / 64.0,
        Scheme::Nf4 { double_quant: true } => 4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0),
        Scheme::Ggml(ty) => 8.0 * ty.block_bytes() as f64 / ty.block_len() as f64,
        Scheme::Int8Outlier => 8.0,
        _ => match scheme.int() {
            Some((bits, Grouping::Group(n))) => f64::from(bits.width()) + 16.0 / n as f64,
            Some((bits, _)) => f64::from(bits.width()),
            None => 0.0,
        },
    }
}

/// A number of parameters as people write it: `13B`, `0.5B`, `135M`, `1000000`.
///
/// # Errors
/// [`Error::Request`].
pub fn parse_parameters(text: &str) -> Result<u64> {
    let wrong = || Error::Request(format!("'{text}' is no number of parameters: write it like 13B, 0.5B or 135M"));
    let trimmed = text.trim();
    let (digits, factor) = match trimmed.char_indices().last() {
        Some((at, 'b' | 'B')) => (&trimmed[..at], 1e9),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 1e6),
        Some((at, 'k' | 'K')) => (&trimmed[..at], 1e3),
        Some((at, 't' | 'T')) => (&trimmed[..at], 1e12),
        _ => (trimmed, 1.0),
    };
    let number: f64 = digits.replace(['_', ','], "").parse().map_err(|_| wrong())?;
    let count = (number * factor).round();
    if (1.0..=1e18).contains(&count) { Ok(count as u64) } else { Err(wrong()) }
}

/// Computes the fit of a model of which only the number of parameters is known.
///
/// # Errors
/// [`Error::Request`] for numbers that make no sense.
pub fn of_parameters(parameters: u64, cache: CacheShape, request: &Request) -> Result<Memory> {
    let candidates = request
        .schemes
        .iter()
        .map(|&scheme| Candidate { scheme: scheme.to_string(), bytes: parameters as f64 * nominal_bits(scheme) / 8.0 });
    fit(None, parameters, cache, candidates.collect(), request)
}

/// Computes the fit of a model: as it is stored, and in each scheme with its linear projections quantized.
///
/// # Errors
/// When the model can't be opened or has no configuration.
pub fn of_model(path: &Path, request: &Request) -> Result<Memory> {
    let model = store::open(path)?;
    let source = conversion::Source::new(&model)?;
    let config = model.config()?;
    let parameters: usize = source.weights.iter().map(conversion::Weight::count).sum();
    let stored: usize = source.weights.iter().map(conversion::Weight::stored_bytes).sum();
    let mut candidates = vec![Candidate { scheme: "as stored".into(), bytes: stored as f64 }];
    let mut notes = source.warnings.clone();
    for &scheme in &request.schemes {
        let misfits = source.weights.iter().filter(|weight| !suits(weight, scheme)).count();
        if misfits == 0 {
            let bytes = source.weights.iter().map(|weight| weight_bytes(weight, scheme)).sum();
            candidates.push(Candidate { scheme: scheme.to_string(), bytes });
        } else {
            notes.push(format!("{scheme} left out: its blocks don't divide the rows of {misfits} matrices"));
        }
    }
    let cache =
        CacheShape { layers: config.layers as u64, kv_heads: config.kv_heads as u64, head_dim: config.head_dim as u64 };
    let mut memory = fit(Some(path.display().to_string()), parameters as u64, cache, candidates, request)?;
    memory.trained_context = Some(config.max_position as u64);
    memory.notes.splice(..0, notes);
    Ok(memory)
}

/// Returns whether a weight can be in the scheme, or isn't meant to be.
fn suits(weight: &conversion::Weight, scheme: Scheme) -> bool {
    match (scheme, &weight.shape[..]) {
        (Scheme::Ggml(ty), &[_, cols]) if weight.is_block_projection() => cols.is_multiple_of(ty.block_len()),
        _ => true,
    }
}

/// Bytes of one weight: in the scheme if that is what conversion does by default, else as stored.
fn weight_bytes(weight: &conversion::Weight, scheme: Scheme) -> f64 {
    match weight.shape[..] {
        [rows, cols] if weight.is_block_projection() => scheme.total_bits(rows, cols, 0, FloatType::F16) / 8.0,
        _ => weight.stored_bytes() as f64,
    }
}

fn fit(
    model: Option<String>,
    parameters: u64,
    cache: CacheShape,
    candidates: Vec<Candidate>,
    request: &Request,
) -> Result<Memory> {
    check(cache, request)?;
    let [f16, int8] = [KvType::F16, KvType::Int8].map(|kv| cache.bytes_per_token(kv));
    let row = |candidate: Candidate| Row {
        bits_per_parameter: 8.0 * candidate.bytes / parameters as f64,
        weight_bytes: candidate.bytes,
        fits: request.vram.iter().map(|&vram| device(vram, candidate.bytes, [f16, int8], request)).collect(),
        scheme: candidate.scheme,
    };
    Ok(Memory {
        model,
        parameters,
        cache,
        cache_bytes_per_token_f16: f16,
        cache_bytes_per_token_int8: int8,
        trained_context: None,
        context: request.context,
        overhead_gib: request.overhead,
        rows: candidates.into_iter().map(row).collect(),
        notes: outlier_note(request),
    })
}

/// Notes that the number of columns that stay F16 is known after calibration only.
fn outlier_note(request: &Request) -> Vec<String> {
    let asked = request.schemes.contains(&Scheme::Int8Outlier);
    let note =
        format!("{}: without its F16 columns, which calibration finds; so at least this much", Scheme::Int8Outlier);
    asked.then_some(note).into_iter().collect()
}

fn check(cache: CacheShape, request: &Request) -> Result<()> {
    let wrong = |what: &str| Err(Error::Request(what.into()));
    let product = [cache.layers, cache.kv_heads, cache.head_dim].into_iter().try_fold(12u64, u64::checked_mul);
    if !product.is_some_and(|bytes| (1..1 << 50).contains(&bytes)) {
        return wrong("layers, kv heads and head dim must be at least 1, and those of one model");
    }
    if !request.vram.iter().all(|v| *v > 0.0 && *v <= MOST_GIB) || request.vram.is_empty() {
        return wrong("--vram takes sizes above 0 and at most 1,000,000, in GiB");
    }
    if !(0.0..=MOST_GIB).contains(&request.overhead) {
        return wrong("--overhead takes a size in GiB, 0 to 1,000,000");
    }
    if request.context == 0 {
        return wrong("--ctx takes at least 1 token");
    }
    Ok(())
}

fn device(vram: f64, weights: f64, cache: [u64; 2], request: &Request) -> Fit {
    let left = vram * GIB - request.overhead * GIB - weights;
    let tokens = cache.map(|bytes| (left >= 0.0).then(|| (left / bytes as f64).floor() as u64));
    let users = tokens.map(|tokens| tokens.map(|t| t / request.context));
    Fit {
        vram_gib: vram,
        left_bytes: left,
        context_f16: tokens[0],
        context_int8: tokens[1],
        users_f16: users[0],
        users_int8: users[1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(parameters: &str, cache: (u64, u64, u64), scheme: &str, vram: f64) -> Option<u64> {
        let (layers, kv_heads, head_dim) = cache;
        let request = Request {
            vram: vec![vram],
            overhead: 1.5,
            context: 4096,
            schemes: vec![scheme.parse().expect("a scheme")],
        };
        let parameters = parse_parameters(parameters).expect("a number");
        let cache = CacheShape { layers, kv_heads, head_dim };
        of_parameters(parameters, cache, &request).expect("sensible").rows[0].fits[0].context_f16
    }

    #[test]
    fn three_models_with_known_answers() {
        assert_eq!(tokens("13B", (40, 40, 128), "int4-g128", 8.0), Some(337));
        assert_eq!(tokens("7B", (32, 8, 128), "int8-row", 16.0), Some(65_378));
        assert_eq!(tokens("13B", (40, 40, 128), "int8-row", 16.0), Some(3_136));
        assert_eq!(tokens("13B", (40, 40, 128), "f16", 8.0), None);
    }

    #[test]
    fn the_cache_of_a_token() {
        let of = |kv_heads| CacheShape { layers: 24, kv_heads, head_dim: 64 };
        let [f16, int8] = [KvType::F16, KvType::Int8];
        assert_eq!((of(2).bytes_per_token(f16), of(14).bytes_per_token(f16)), (12_288, 86_016));
        assert_eq!(of(2).bytes_per_token(int8), 2 * 24 * 2 * 66);
    }

    #[test]
    fn nominal_bits_are_those_of_the_table() {
        let bits = |name: &str| nominal_bits(name.parse().expect("a scheme"));
        let known = [("int8-row", 8.0), ("int4-g128", 4.125), ("nf4", 4.25), ("ggml-q8_0", 8.5), ("f16", 16.0)];
        for (name, expected) in known {
            assert_eq!(bits(name), expected, "{name}");
        }
        assert!((bits("nf4-dq") - 4.127).abs() < 1e-3);
    }

    #[test]
    fn parameters_as_people_write_them() {
        let known = [("13B", 13_000_000_000), ("0.5b", 500_000_000), ("135M", 135_000_000), ("1_000", 1000)];
        for (text, count) in known {
            assert_eq!(parse_parameters(text).ok(), Some(count), "{text}");
        }
        for text in ["", "B", "-1B", "13G", "nan", "1e30B", "0"] {
            assert!(parse_parameters(text).is_err(), "{text}");
        }
    }

    #[test]
    fn users_share_what_is_left() {
        let cache = CacheShape { layers: 32, kv_heads: 8, head_dim: 128 };
        let mut request =
            Request { vram: vec![16.0], overhead: 1.5, context: 4096, schemes: vec![Scheme::Int8Outlier] };
        let memory = of_parameters(7_000_000_000, cache, &request).expect("sensible");
        let fit = &memory.rows[0].fits[0];
        assert_eq!((fit.users_f16, fit.users_int8), (Some(15), Some(31)));
        for vram in [0.0, 1e300, f64::NAN] {
            request.vram = vec![vram];
            assert!(of_parameters(7_000_000_000, cache, &request).is_err());
        }
        let endless = CacheShape { layers: u64::MAX, kv_heads: 8, head_dim: 128 };
        assert!(of_parameters(1, endless, &Request { vram: vec![8.0], ..request }).is_err());
    }
}
