//! Taking a model's weights.

use super::Transformer;
use crate::gpu;
use crate::linear::{self, PackedLinear, Placed};
use crate::ops::{norm::RmsNorm, rope};
use crate::{Error, Options, Result};
use candle_core::Device;
use std::sync::Arc;
use store::{Config, Family};

/// The layers of one block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) input_norm: RmsNorm,
    /// q, k, v.
    pub(super) qkv: Vec<PackedLinear>,
    /// Norms of q and k.
    pub(super) head_norms: Option<(RmsNorm, RmsNorm)>,
    pub(super) o: PackedLinear,
    pub(super) post_norm: RmsNorm,
    /// gate, up.
    pub(super) gate_up: Vec<PackedLinear>,
    pub(super) down: PackedLinear,
}

/// Reads a model's tensors and counts their bytes.
struct Loader<'a> {
    model: &'a store::Model,
    config: &'a Config,
    device: &'a Device,
    options: &'a Options,
    placed: Placed,
}

impl Loader<'_> {
    fn linear(&self, module: &str, rows: usize, cols: usize) -> Result<PackedLinear> {
        let linear = self.model.linear(module)?;
        let found = [linear.matrix.rows(), linear.matrix.cols()];
        if found != [rows, cols] {
            return Err(Error::Shape { name: module.into(), found: found.into(), expected: vec![rows, cols] });
        }
        if let Some(bias) = linear.bias.as_ref().filter(|b| b.len() != rows) {
            let name = format!("{module}.bias");
            return Err(Error::Shape { name, found: vec![bias.len()], expected: vec![rows] });
        }
        Ok(PackedLinear::new(module, Arc::new(linear), self.options.math))
    }

    /// Layers that take the same `cols` features, on the device.
    fn together(&mut self, modules: &[(&str, usize)], cols: usize) -> Result<Vec<PackedLinear>> {
        let mut layers =
            modules.iter().map(|(module, rows)| self.linear(module, *rows, cols)).collect::<Result<Vec<_>>>()?;
        self.upload(&mut layers)?;
        Ok(layers)
    }

    fn alone(&mut self, module: &str, rows: usize, cols: usize) -> Result<PackedLinear> {
        let mut layer = self.linear(module, rows, cols)?;
        self.upload(std::slice::from_mut(&mut layer))?;
        Ok(layer)
    }

    fn upload(&mut self, layers: &mut [PackedLinear]) -> Result<()> {
        let placed = linear::upload_layers(layers, self.device, self.options.compute)?;
        self.placed.bytes += placed.bytes;
        self.placed.decoded += placed.decoded;
        Ok(())
    }

    fn norm(&mut self, module: &str, len: usize) -> Result<RmsNorm> {
        let name = format!("{module}.weight");
        let weight = self.model.dense(&name)?.ok_or_else(|| Error::Missing(name.clone()))?;
        if weight.len() != len {
            return Err(Error::Shape { name, found: vec![weight.len()], expected: vec![len] });
        }
        self.placed.bytes += 4 * len;
        Ok(RmsNorm::new(weight, self.config.rms_norm_eps).on(self.device)?)
    }

    fn block(&mut self, layer: usize) -> Result<Block> {
        let c = self.config;
        let at = format!("model.layers.{layer}");
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let (h, inner) = (c.hidden_size, c.intermediate_size);
        let head_norms = match c.family {
            Family::Qwen3 => Some((
                self.norm(&format!("{at}.self_attn.q_norm"), c.head_dim)?,
                self.norm(&format!("{at}.self_attn.k_norm"), c.head_dim)?,
            )),
            Family::Llama | Family::Qwen2 => None,
        };
        Ok(Block {
            input_norm: self.norm(&format!("{at}.input_layernorm"), h)?,
            qkv: self.together(
                &[
                    (&format!("{at}.self_attn.q_proj"), q),
                    (&format!("{at}.self_attn.k_proj"), kv),
                    (&format!("{at}.self_attn.v_proj"), kv),
                ],
                h,
            )?,
            head_norms,
            o: self.alone(&format!("{at}.self_attn.o_proj"), h, q)?,
            post_norm: self.norm(&format!("{at}.post_attention_layernorm"), h)?,
            gate_up: self
                .together(&[(&format!("{at}.mlp.gate_proj"), inner), (&format!("{at}.mlp.up_proj"), inner)], h)?,
            down: self.alone(&format!("{at}.mlp.down_proj"), h, inner)?,
        })
    }
}

impl Transformer {
    /// Takes a model's weights; they stay views into its files, or packed as they are go to a GPU.
    ///
    /// # Errors
    /// What [`store::Model`] says of its tensors (a tensor that the model has no use for among them), or [`Error::Missing`], [`Error::Shape`]; on a GPU
    /// [`Error::CpuOnly`], or that its memory is full.
    pub fn load(model: &store::Model, device: &Device) -> Result<Self> {
        Self::load_with(model, device, &Options::default())
    }

    /// [`Transformer::load`] with options.
    ///
    /// # Errors
    /// As [`Transformer::load`].
    pub fn load_with(model: &store::Model, device: &Device, options: &Options) -> Result<Self> {
        let config = model.config()?;
        model.check_unused(&config)?;
        if !device.is_cpu() {
            crate::device::supported(options)?;
            if !gpu::attention::fits(config.head_dim) {
                return Err(Error::CpuOnly(format!("attention with heads {} wide", config.head_dim)));
            }
        }
        let mut loader = Loader { model, config: &config, device, options, placed: Placed::default() };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        // Rows of it are decoded on the CPU, whatever the device.
        let embedding = loader.linear("model.embed_tokens", vocab, hidden)?;
        let blocks = (0..config.layers).map(|i| loader.block(i)).collect::<Result<Vec<_>>>()?;
        let norm = loader.norm("model.norm", hidden)?;
        let head = if config.tie_word_embeddings {
            let mut head = PackedLinear::new("lm_head", Arc::clone(embedding.linear()), options.math);
            loader.upload(std::slice::from_mut(&mut head))?;
            head
        } else {
            // On a GPU it is not among what is held there.
            loader.placed.bytes += if device.is_cpu() { embedding.bytes() } else { 0 };
            loader.alone("lm_head", vocab, hidden)?
        };
        let (placed, rope) = (loader.placed, rope::Rope::new(&config));
        Ok(Transformer { config, device: device.clone(), embedding, blocks, norm, head, rope, placed })
    }
}
