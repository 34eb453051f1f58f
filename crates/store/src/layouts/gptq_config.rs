//! Settings of GPTQ's and AWQ's layers in config.json, for all layers and for single ones.

use super::{Site, quantization};
use crate::{Error, Model, Result, json::shown};
use serde_json::{Map, Value};

/// The two layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Words along the input features.
    Gptq,
    /// Words along the output features, their nibbles interleaved.
    Awq,
}

/// Operation that turns stored zero points into zero points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZeroPoints {
    /// Zero points are stored as they are.
    AsStored,
    /// Each was stored less one, and wraps within the bits of a code.
    LessOne,
    /// Words of them were stored less a one in each field, borrows and all (GPTQModel's own writing).
    LessOneInWords,
}

/// Settings of a layer in config.json.
#[derive(Debug, Clone, Copy)]
pub(super) struct Said {
    pub kind: Kind,
    pub bits: usize,
    pub zeros: ZeroPoints,
    /// True if zero points may be absent: all are the middle of the codes.
    pub symmetric: bool,
    /// True if columns are in groups in another order than their own.
    pub ordered: bool,
    /// Columns of a group; none where a row is one group.
    pub group_size: Option<usize>,
}

/// Refuses what would change every weight if it were ignored.
pub(super) fn check(model: &Model, config: &Map<String, Value>) -> Result<()> {
    let refuse = |what: String| Error::unsupported(&model.path, what);
    read(config).map_err(refuse)?;
    let Some(dynamic) = config.get("dynamic").filter(|d| !d.is_null()) else { return Ok(()) };
    let rules = dynamic.as_object().ok_or_else(|| refuse("GPTQ's dynamic is not an object of rules".into()))?;
    rules.keys().try_for_each(|rule| pattern(rule).map(|_| ())).map_err(refuse)
}

/// Settings of one module: of the `dynamic` rules, the first whose pattern matches at the start of the name overrides
/// the rest.
pub(super) fn of_module(site: Site<'_>) -> Result<Said> {
    let config = quantization(site.model()).ok_or_else(|| {
        site.bad(".qweight", "config.json has no quantization_config: GPTQ or AWQ can't be told apart")
    })?;
    let rules = config.get("dynamic").and_then(Value::as_object).into_iter().flatten();
    for (rule, overrides) in rules {
        let (excluded, regex) = pattern(rule).map_err(|e| site.unsupported(e))?;
        if !regex.is_match(site.module) {
            continue;
        }
        if excluded {
            return Err(
                site.bad(".qweight", format!("GPTQ's dynamic rule '{}' says that it isn't quantized", shown(rule)))
            );
        }
        let mut merged = config.clone();
        merged.extend(overrides.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
        return read(&merged).map_err(|e| site.unsupported(e));
    }
    read(config).map_err(|e| site.unsupported(e))
}

/// Returns whether a rule excludes modules, and the pattern of their names.
fn pattern(rule: &str) -> Result<(bool, regex::Regex), String> {
    let (excluded, pattern) = match rule.strip_prefix("-:") {
        Some(pattern) => (true, pattern),
        None => (false, rule.strip_prefix("+:").unwrap_or(rule)),
    };
    match regex::Regex::new(&format!("^(?:{pattern})")) {
        Ok(regex) => Ok((excluded, regex)),
        Err(_) => Err(format!("GPTQ's dynamic rule '{}' is not understood", shown(rule))),
    }
}

fn read(config: &Map<String, Value>) -> Result<Said, String> {
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    let flag = |key: &str, default: bool| config.get(key).and_then(Value::as_bool).unwrap_or(default);
    let bits = match config.get("bits").or_else(|| config.get("w_bit")) {
        None => 4,
        Some(bits) => bits.as_u64().ok_or_else(|| format!("bits {} are not a number", shown(&bits.to_string())))?,
    };
    for key in ["pack_dtype", "pack_bits"] {
        let packed = config.get(key).filter(|v| !v.is_null());
        if let Some(other) = packed.filter(|v| v.as_str() != Some("int32") && v.as_u64() != Some(32)) {
            return Err(format!("{key} {} is not supported; 32-bit words are", shown(&other.to_string())));
        }
    }
    let size = config.get("group_size").or_else(|| config.get("q_group_size")).and_then(Value::as_i64);
    let group_size = size.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    if text("quant_method") == Some("awq") {
        return read_awq(config, bits, group_size);
    }
    if bits != 4 && bits != 8 {
        return Err(format!("GPTQ with {bits} bits is not supported; 4 and 8 are"));
    }
    let zeros = match text("checkpoint_format").or_else(|| text("format")) {
        None | Some("gptq") if written_by_gptqmodel(config) => ZeroPoints::LessOneInWords,
        None | Some("gptq") => ZeroPoints::LessOne,
        Some("gptq_v2") => ZeroPoints::AsStored,
        Some(other) => {
            let other = shown(other);
            return Err(format!("GPTQ's format '{other}' is not supported; gptq and gptq_v2 are"));
        }
    };
    let (symmetric, ordered) = (flag("sym", true), flag("desc_act", false));
    Ok(Said { kind: Kind::Gptq, bits: bits as usize, zeros, symmetric, ordered, group_size })
}

fn read_awq(config: &Map<String, Value>, bits: u64, group_size: Option<usize>) -> Result<Said, String> {
    let version = config.get("version").or_else(|| config.get("format")).and_then(Value::as_str);
    match version.map(str::to_ascii_lowercase).as_deref() {
        None | Some("gemm") => {}
        Some(other) => return Err(format!("AWQ's version '{}' is not supported; gemm is", shown(other))),
    }
    if bits != 4 {
        return Err(format!("AWQ with {bits} bits is not supported; 4 are"));
    }
    let symmetric = config.get("zero_point").and_then(Value::as_bool) == Some(false);
    Ok(Said { kind: Kind::Awq, bits: 4, zeros: ZeroPoints::AsStored, symmetric, ordered: false, group_size })
}

/// Returns whether the file names GPTQModel as its writer.
fn written_by_gptqmodel(config: &Map<String, Value>) -> bool {
    let quantizer = config.get("meta").and_then(|m| m.get("quantizer"));
    let named = |v: &Value| v.as_str().is_some_and(|s| s.to_ascii_lowercase().starts_with("gptqmodel:"));
    quantizer.is_some_and(|v| named(v) || v.as_array().is_some_and(|all| all.iter().any(named)))
}
