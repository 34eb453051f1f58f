//! bitsandbytes: NF4 with plain or double-quantized scales, and LLM.int8.

use super::{Content, Laid, Layout, NoFit, OutTensor, Request};
use crate::encode::Encoding;
use schemes::{Bits, FloatType, Grouping, Scheme, nf4};
use serde_json::{Value, json};
use store::DType;

/// Lays a weight out.
pub(super) fn lay(r: &Request<'_>) -> Result<Laid, NoFit> {
    let laid = |encoding, tensors| Ok(Laid { layout: Layout::Bitsandbytes, encoding, tensors, entry: None });
    match r.scheme {
        Scheme::Nf4 { double_quant } => {
            let (encoding, tensors) = nf4_tensors(r, double_quant);
            laid(encoding, tensors)
        }
        Scheme::Int(Bits::Eight, Grouping::Row) => {
            let base = r.name.strip_suffix(".weight").unwrap_or(r.name);
            laid(
                Encoding::Scb,
                vec![
                    OutTensor::stream(r.name.to_string(), DType::I8, vec![r.rows, r.cols], 0),
                    OutTensor::stream(format!("{base}.SCB"), DType::F32, vec![r.rows], 1),
                    OutTensor::constant(format!("{base}.weight_format"), DType::U8, vec![], vec![0]),
                ],
            )
        }
        other => Err(NoFit {
            why: format!("bitsandbytes does not hold {other}"),
            instead: "nf4, nf4-dq and int8-row fit; --layout packed holds the others".into(),
        }),
    }
}

fn nf4_tensors(r: &Request<'_>, double_quant: bool) -> (Encoding, Vec<OutTensor>) {
    let blocks = (r.rows * r.cols).div_ceil(nf4::BLOCK);
    let name = |suffix: &str| format!("{}.{suffix}", r.name);
    let le = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let state = QuantState { rows: r.rows, cols: r.cols, float: r.model_float };
    let mut tensors = vec![OutTensor::stream(r.name.to_string(), DType::U8, vec![(r.rows * r.cols).div_ceil(2), 1], 0)];
    if double_quant {
        tensors.push(OutTensor::stream(name("absmax"), DType::U8, vec![blocks], 1));
        tensors.push(OutTensor::stream(name("nested_absmax"), DType::F32, vec![blocks.div_ceil(nf4::NESTED_BLOCK)], 2));
        tensors.push(OutTensor::constant(name("nested_quant_map"), DType::F32, vec![256], le(&nf4::dynamic_map())));
        // The offset is known only once the weights are read: the state's bytes are the
        // encoder's fourth stream.
        let json = OutTensor {
            name: name("quant_state.bitsandbytes__nf4"),
            dtype: DType::U8,
            shape: vec![STATE_WIDTH],
            bytes: STATE_WIDTH as u64,
            content: Content::Stream(3),
        };
        tensors.push(OutTensor::constant(name("quant_map"), DType::F32, vec![16], le(&nf4::LEVELS)));
        tensors.push(json);
        (Encoding::Nf4Nested(Some(state)), tensors)
    } else {
        let json = state.json(None);
        tensors.push(OutTensor::stream(name("absmax"), DType::F32, vec![blocks], 1));
        tensors.push(OutTensor::constant(name("quant_map"), DType::F32, vec![16], le(&nf4::LEVELS)));
        tensors.push(OutTensor::constant(name("quant_state.bitsandbytes__nf4"), DType::U8, vec![json.len()], json));
        (Encoding::Nf4(FloatType::F32), tensors)
    }
}

/// Bytes of a double-quantized state, padded with spaces, which JSON ignores.
const STATE_WIDTH: usize = 224;

/// Fields that bitsandbytes stores of an NF4 weight beside its codes and scales.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantState {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The float type that the weight had.
    pub float: FloatType,
}

impl QuantState {
    /// The state's JSON; with the offset of double quantization, padded to a fixed width.
    pub fn json(&self, offset: Option<f32>) -> Vec<u8> {
        let QuantState { rows, cols, float } = self;
        let dtype = torch_name(*float);
        let mut state = format!(
            "{{\"quant_type\": \"nf4\", \"blocksize\": {}, \"dtype\": \"{dtype}\", \"shape\": [{rows}, {cols}]",
            nf4::BLOCK
        );
        if let Some(offset) = offset {
            let block = nf4::NESTED_BLOCK;
            state.push_str(&format!(
                ", \"nested_blocksize\": {block}, \"nested_dtype\": \"float32\", \"nested_offset\": {}",
                f64::from(offset)
            ));
        }
        state.push('}');
        if offset.is_some() {
            state = format!("{state:<STATE_WIDTH$}");
        }
        state.into_bytes()
    }
}

fn torch_name(float: FloatType) -> &'static str {
    match float {
        FloatType::F32 => "float32",
        FloatType::F16 => "float16",
        FloatType::BF16 => "bfloat16",
    }
}

/// The `quantization_config` of config.json.
pub fn quantization_config(scheme: Scheme, float: FloatType, skip: &[String]) -> Value {
    let compute = torch_name(float);
    match scheme {
        Scheme::Nf4 { double_quant } => json!({
            "quant_method": "bitsandbytes",
            "load_in_4bit": true,
            "load_in_8bit": false,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": compute,
            "bnb_4bit_use_double_quant": double_quant,
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": skip,
        }),
        _ => json!({
            "quant_method": "bitsandbytes",
            "load_in_8bit": true,
            "load_in_4bit": false,
            "llm_int8_threshold": 6.0,
            "llm_int8_has_fp16_weight": false,
            "llm_int8_skip_modules": skip,
        }),
    }
}
