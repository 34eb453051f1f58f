//! Rotary positions, and the per-head norms of q and k before them.

use super::{attention::Span, norm::RmsNorm, values_mut};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor, bail};
use rayon::prelude::*;
use std::f64::consts::PI;
use store::{Config, RopeScaling};

/// Rotary frequencies of a model.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f32>,
    /// Factor of cos and sin.
    amplitude: f64,
}

/// Cosines and sines of the positions of some tokens, `[tokens, head_dim / 2]`.
#[derive(Debug, Clone)]
pub struct Turns {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
    /// Both on a GPU.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) resident: Option<[Tensor; 2]>,
}

impl Rope {
    /// Rotary tables of a configuration.
    pub fn new(config: &Config) -> Self {
        let d = config.head_dim;
        let plain = (0..d / 2).map(|i| 1.0 / config.rope_theta.powf(2.0 * i as f64 / d as f64));
        let mut amplitude = 1.0;
        let frequencies: Vec<f64> = match &config.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Factors(factors) => plain.zip(factors).map(|(f, x)| f / f64::from(*x)).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_max_position } => {
                let turns = *original_max_position as f64 / (2.0 * PI);
                plain.map(|f| f * llama3(f * turns, *factor, *low, *high)).collect()
            }
            scaling @ RopeScaling::Yarn { factor, attention_factor, .. } => {
                amplitude = *attention_factor;
                let (low, high) = scaling.yarn_ramp(d, config.rope_theta).unwrap_or((0.0, 0.0));
                // A ramp of no length becomes a step, as in transformers.
                let length = if high > low { high - low } else { 0.001 };
                let kept = |i: usize| 1.0 - ((i as f64 - low) / length).clamp(0.0, 1.0);
                plain.enumerate().map(|(i, f)| f / factor * (1.0 - kept(i)) + f * kept(i)).collect()
            }
        };
        Rope { frequencies: frequencies.into_iter().map(|f| f as f32).collect(), amplitude }
    }

    /// Cosines and sines of the tokens of a batch.
    pub fn turns(&self, spans: &[Span]) -> Turns {
        let half = self.frequencies.len();
        let positions: Vec<usize> = spans.iter().flat_map(|s| s.past..s.past + s.rows.len()).collect();
        let n = positions.len();
        let (mut cos, mut sin) = (vec![0f32; n * half], vec![0f32; n * half]);
        let rows = cos.par_chunks_mut(half).zip(sin.par_chunks_mut(half)).zip(&positions).with_min_len(16);
        rows.for_each(|((cos, sin), position)| {
            for ((c, s), f) in cos.iter_mut().zip(sin).zip(&self.frequencies) {
                // The angle is rounded to f32, as the reference implementations have it.
                let angle = f64::from(*position as f32 * f);
                (*s, *c) = ((angle.sin() * self.amplitude) as f32, (angle.cos() * self.amplitude) as f32);
            }
        });
        Turns { cos, sin, half, resident: None }
    }
}

/// The share of a frequency that Llama 3.1's scaling leaves; it makes `turns` turns over the
/// original context.
fn llama3(turns: f64, factor: f64, low: f64, high: f64) -> f64 {
    if turns < low {
        1.0 / factor
    } else if turns > high {
        1.0
    } else {
        let smooth = (turns - low) / (high - low);
        (1.0 - smooth) / factor + smooth
    }
}

impl Turns {
    /// For a device.
    ///
    /// # Errors
    /// When its memory is full.
    pub fn on(self, device: &Device) -> Result<Self> {
        let place = |values: &[f32]| Tensor::from_slice(values, values.len(), device);
        let both = || Ok::<_, candle_core::Error>([place(&self.cos)?, place(&self.sin)?]);
        let resident = (!device.is_cpu()).then(both).transpose()?;
        Ok(Turns { resident, ..self })
    }

    /// Turns one head of the `i`-th token: the first half against the second.
    fn head(&self, i: usize, head: &mut [f32]) {
        let at = i * self.half..(i + 1) * self.half;
        let (first, second) = head.split_at_mut(self.half);
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(&self.cos[at.clone()]).zip(&self.sin[at]) {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

/// Norms and turns q and k in place, in `[tokens, (heads + 2 kv_heads) * head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct TurnHeads<'a> {
    /// Cosines and sines of the tokens' positions.
    pub turns: &'a Turns,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Norm of each query head and of each key head (Qwen3).
    pub norms: Option<&'a (RmsNorm, RmsNorm)>,
}

impl TurnHeads<'_> {
    /// On a slice.
    pub fn run(&self, qkv: &mut [f32]) {
        let (d, heads) = (self.head_dim, self.heads + self.kv_heads);
        qkv.par_chunks_mut((heads + self.kv_heads) * d).with_min_len(16).enumerate().for_each(|(t, row)| {
            for (i, head) in row.chunks_exact_mut(d).take(heads).enumerate() {
                if let Some((q, k)) = self.norms {
                    if i < self.heads { q.row(head) } else { k.row(head) }
                }
                self.turns.head(t, head);
            }
        });
    }

    /// Tokens that are turned.
    pub fn tokens(&self) -> usize {
        self.turns.cos.len() / self.turns.half.max(1)
    }

    fn check(&self, qkv: &Layout) -> Result<()> {
        let row = (self.heads + 2 * self.kv_heads) * self.head_dim;
        if qkv.shape().elem_count() != self.tokens() * row || self.turns.half * 2 != self.head_dim {
            bail!("rope of {} tokens and heads {} wide: {:?}", self.tokens(), self.head_dim, qkv.shape());
        }
        Ok(())
    }
}

impl InplaceOp1 for TurnHeads<'_> {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, qkv: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.check(layout)?;
        self.run(values_mut(qkv, layout)?);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, qkv: &mut CudaStorage, layout: &Layout) -> Result<()> {
        self.check(layout)?;
        crate::cuda::turn_heads(self, qkv, layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Family;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope::new(&Config {
            family: Family::Llama,
            vocab_size: 8,
            hidden_size: 64,
            intermediate_size: 8,
            layers: 1,
            heads: 1,
            kv_heads: 1,
            head_dim: 64,
            rms_norm_eps: 1e-5,
            rope_theta: 10000.0,
            rope_scaling: scaling,
            max_position: 4096,
            window: None,
            tie_word_embeddings: true,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
        })
    }

    #[test]
    fn linear_and_explicit_factors_divide() {
        let plain = rope(RopeScaling::None).frequencies;
        assert_eq!((plain[0], plain.len()), (1.0, 32));
        let linear = rope(RopeScaling::Linear { factor: 4.0 }).frequencies;
        assert!(plain.iter().zip(&linear).all(|(p, l)| p / 4.0 == *l));
        let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
        let explicit = rope(RopeScaling::Factors(factors.clone())).frequencies;
        assert!(plain.iter().zip(&factors).zip(&explicit).all(|((p, f), e)| (p / f - e).abs() <= 1e-7 * e));
    }

    #[test]
    fn yarn_keeps_fast_turns_and_stretches_slow_ones() {
        let plain = rope(RopeScaling::None).frequencies;
        let yarn = rope(RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.139,
            original_max_position: 2048,
            truncate: true,
        });
        // d ln(2048 / (turns 2 pi)) / (2 ln 10000): 8.07 for 32 turns, 20.1 for one turn.
        for (i, (p, y)) in plain.iter().zip(&yarn.frequencies).enumerate() {
            let ramp = ((i as f32 - 8.0) / 13.0).clamp(0.0, 1.0);
            let want = p / 4.0 * ramp + p * (1.0 - ramp);
            assert!((y - want).abs() <= 1e-6 * want, "{i}: {y} {want}");
        }
        let turns = yarn.turns(&[Span { rows: 0..2, past: 5, blocks: Vec::new() }]);
        assert!((f64::from(turns.cos[32]) - 1.139 * 6f64.cos()).abs() < 1e-6);
        assert!((f64::from(turns.sin[0]) - 1.139 * 5f64.sin()).abs() < 1e-6);
    }

    /// Every rotary key of config.json, against what transformers computes.
    #[test]
    fn frequencies_equal_transformers() {
        let golden: serde_json::Value = serde_json::from_str(include_str!("rope_golden.json")).expect("JSON");
        let cases = golden["cases"].as_array().expect("cases");
        assert_eq!(cases.len(), 23);
        for case in cases {
            let model = store::Model {
                path: "golden".into(),
                container: store::Container::Directory,
                tensors: Default::default(),
                metadata: Default::default(),
                config_json: Some(case["config"].clone()),
                config_text: None,
                side_files: Vec::new(),
                warnings: Vec::new(),
            };
            let rope = Rope::new(&model.config().expect("a configuration"));
            let wanted: Vec<f64> =
                case["frequencies"].as_array().expect("list").iter().flat_map(|f| f.as_f64()).collect();
            assert_eq!(rope.frequencies.len(), wanted.len(), "{}", case["config"]);
            for (got, want) in rope.frequencies.iter().zip(&wanted) {
                // Theirs are computed in f32.
                assert!((f64::from(*got) - want).abs() <= 2e-6 * want, "{got} {want}: {}", case["config"]);
            }
            let amplitude = case["amplitude"].as_f64().expect("a number");
            assert!((rope.amplitude - amplitude).abs() <= 1e-9 * amplitude, "{} {}", rope.amplitude, case["config"]);
        }
    }
}
