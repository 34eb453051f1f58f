//! The plan of an artifact: what becomes of each weight, found before any work.

use crate::encode::Encoding;
use crate::error::{Error, Misfit, Result};
use crate::layout::{self, Content, Laid, Layout, OutTensor};
use crate::loaders;
use crate::mix::{Mix, MixedType};
use crate::rules::Rules;
use crate::source::{self, Values, Weight};
use crate::{artifact_checks, completeness};
use candle_core::Device;
use observe::Calibration;
use schemes::{FloatType, Overflow, RowOrder, Scheme, Storage, outlier};
use std::collections::{BTreeSet, HashSet};
use store::{DType, Model, gguf};

/// The container of an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One GGUF file.
    Gguf,
    /// A Hugging Face directory of safetensors.
    Safetensors,
}

/// Everything about a conversion but the scheme.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The container.
    pub target: Target,
    /// The layout, if the default is not wanted.
    pub layout: Option<Layout>,
    /// Treatment of values that the float type can't hold.
    pub overflow: Overflow,
    /// Write quantized weights as what they decode to, in this type, so that any engine can score
    /// them.
    pub emulate: Option<FloatType>,
    /// Largest shard in bytes.
    pub max_shard: Option<u64>,
    /// Rules that choose the quantized weights and their schemes.
    pub rules: Rules,
    /// Mixture of types that stands in for the one scheme.
    pub mix: Option<Mix>,
    /// Activation statistics.
    pub calibration: Option<Calibration>,
    /// True to read the finished artifact again, and compare it with its source, before it replaces anything at its
    /// destination.
    pub verify: bool,
    /// A GPU that then also decodes the weights, as it would to run them.
    pub verify_on: Option<Device>,
}

impl Settings {
    /// Defaults for a container.
    pub fn new(target: Target) -> Self {
        Settings {
            target,
            layout: None,
            overflow: Overflow::Error,
            emulate: None,
            max_shard: None,
            rules: Rules::default(),
            mix: None,
            calibration: None,
            verify: false,
            verify_on: None,
        }
    }
}

/// Plan for one weight.
#[derive(Debug, Clone)]
pub struct PlannedWeight {
    /// Index among the source's weights.
    pub index: usize,
    /// Scheme of the weight; none if it stays as it is.
    pub scheme: Option<Scheme>,
    /// Name of the weight in the artifact, ending in `.weight` where the source's does.
    pub name: String,
    /// Order of its rows in the artifact.
    pub order: RowOrder,
    /// Layout, encoding and tensors.
    pub laid: Laid,
}

/// The plan of one artifact.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The requested scheme: that of the weights which no rule names.
    pub scheme: Scheme,
    /// Label of the artifact: its scheme. For a mixed artifact every scheme of its quantized weights, joined by `+`,
    /// the requested one first.
    pub label: String,
    /// GGUF's `general.file_type`, where the request says it.
    pub file_type: Option<u32>,
    /// The container.
    pub target: Target,
    /// Plan for each weight, in order.
    pub weights: Vec<PlannedWeight>,
    /// Weights that don't fit. A plan with any is not carried out.
    pub misfits: Vec<Misfit>,
    /// Things that a user should know.
    pub notes: Vec<String>,
}

/// A model with its weights listed, and what planning needs of it.
#[derive(Debug)]
pub struct Source<'a> {
    /// The opened model.
    pub model: &'a Model,
    /// Weights of the model.
    pub weights: Vec<Weight>,
    /// The float type of most of it.
    pub float: FloatType,
    /// Configuration, if it is one that is known here. The weights suit it.
    pub config: Option<store::Config>,
    /// Warnings for the user, those of the model's files first.
    pub warnings: Vec<String>,
}

/// The table of token embeddings.
const EMBEDDING: &str = "model.embed_tokens.weight";

impl<'a> Source<'a> {
    /// Lists the weights of a model, which must be whole where it has a configuration.
    ///
    /// # Errors
    /// When a weight's layout is not understood, or a weight that the configuration asks for is
    /// missing or has another shape.
    pub fn new(model: &'a Model) -> Result<Self> {
        let mut weights = source::weights(model)?;
        let float = source::main_float(&weights);
        let mut warnings = model.warnings.clone();
        let config = completeness::config(model, &mut weights, &mut warnings)?;
        if config.as_ref().is_some_and(|c| c.tie_word_embeddings) && weights.iter().all(|w| w.module() != "lm_head") {
            weights.iter_mut().for_each(|w| w.tied = w.name == EMBEDDING);
        }
        let mut source = Source { model, weights, float, config, warnings };
        let rows = source.vocab_rows();
        completeness::tokenizer_warnings(model, rows, &mut source.warnings);
        Ok(source)
    }

    /// Rows of the embedding.
    pub fn vocab_rows(&self) -> Option<usize> {
        let embedding = self.weights.iter().find(|w| w.name == EMBEDDING)?;
        embedding.shape.first().copied()
    }

    /// Plans an artifact. Weights named in `wide` get f32 scales.
    ///
    /// # Errors
    /// [`Error::Request`] when the request makes no sense. Weights that don't fit are listed in
    /// the plan.
    pub fn plan(&self, scheme: Scheme, settings: &Settings, wide: &HashSet<String>) -> Result<Plan> {
        artifact_checks::check_layout(settings)?;
        settings.rules.check(&self.weights, scheme)?;
        check_calibration(scheme, settings)?;
        let wanted = self.wanted(scheme, settings)?;
        let mut plan = Plan {
            scheme,
            label: self.label(scheme, settings, &wanted),
            file_type: settings.mix.map(Mix::file_type),
            target: settings.target,
            weights: Vec::new(),
            misfits: Vec::new(),
            notes: Vec::new(),
        };
        let config = match (settings.target, &self.config) {
            (Target::Safetensors, _) => None,
            (Target::Gguf, Some(config)) => Some(config),
            // Says why there is none.
            (Target::Gguf, None) => return Err(no_config(self.model)),
        };
        if let Some(config) = config
            && settings.layout != Some(Layout::Packed)
        {
            completeness::check_llama_cpp(config, &self.weights)?;
        }
        let beside = artifact_checks::companions(&self.weights);
        for (index, weight) in self.weights.iter().enumerate() {
            let (name, order) = self.artifact_name(weight, config)?;
            let chosen = self.loadable(weight, wanted[index], settings);
            let laid = self.lay(weight, &name, order, chosen, settings, wide);
            match laid.and_then(|laid| artifact_checks::check_companions(weight, &beside, laid)) {
                Ok(laid) => {
                    let scheme = chosen.filter(|s| !matches!(s, Scheme::Float(_)));
                    plan.weights.push(PlannedWeight { index, scheme, name, order, laid });
                }
                Err(misfit) => plan.misfits.push(misfit),
            }
        }
        if scheme == Scheme::W8A8Tensor && settings.target == Target::Safetensors && settings.layout.is_none() {
            plan.notes.push("w8a8-tensor (one activation scale for a call) loads in transformers, but vLLM takes only per-token or static scales".into());
        }
        if settings.emulate.is_some()
            && plan.weights.iter().any(|w| w.scheme.is_some_and(Scheme::quantizes_activations))
        {
            plan.notes.push("only weights are emulated: the scheme's rounding of activations is not".into());
        }
        artifact_checks::check_one_method(&plan, self)?;
        if plan.misfits.is_empty() {
            loaders::check(self, &plan)?;
        }
        if let Some(mix) = settings.mix {
            plan.notes.extend(self.fallbacks(mix)?);
        }
        plan.notes.extend(artifact_checks::kept_matrices(&plan, self));
        plan.notes.extend(artifact_checks::kept_for_loaders(&plan, self, settings));
        plan.notes.extend(artifact_checks::packed_in_gguf(&plan, self, settings));
        plan.notes.extend(artifact_checks::of_sources(&plan, self));
        let quantized = plan.weights.iter().filter(|w| w.scheme.is_some()).count();
        if quantized == 0 && plan.misfits.is_empty() && !matches!(scheme, Scheme::Float(_)) {
            return Err(artifact_checks::nothing_to_quantize(self, scheme, settings));
        }
        Ok(plan)
    }

    /// The scheme of each weight by the rules or the mixture; none for one that stays as it is.
    ///
    /// # Errors
    /// As [`Source::mixed`].
    pub(crate) fn wanted(&self, scheme: Scheme, settings: &Settings) -> Result<Vec<Option<Scheme>>> {
        let weights = self.weights.iter();
        let Some(mix) = settings.mix else {
            return Ok(weights.map(|weight| settings.rules.scheme_for(weight, scheme)).collect());
        };
        let mixed = self.mixed(mix)?;
        Ok(weights.zip(mixed).map(|(weight, ty)| settings.rules.overruled(weight, ty.scheme())).collect())
    }

    /// Each weight's type in a mixture.
    ///
    /// # Errors
    /// When the model has no configuration, or a weight has no name in GGUF.
    fn mixed(&self, mix: Mix) -> Result<Vec<MixedType>> {
        let config = self.config.as_ref().ok_or_else(|| no_config(self.model))?;
        let names = self.weights.iter().map(|weight| Ok(self.artifact_name(weight, Some(config))?.0));
        let names: Vec<String> = names.collect::<Result<_>>()?;
        let is_matrix = |at: &usize| self.weights[*at].is_matrix();
        let matrices: Vec<usize> = (0..self.weights.len()).filter(is_matrix).collect();
        let types = mix.types(config, matrices.iter().map(|&at| (names[at].as_str(), self.weights[at].shape[1])));
        let mut out = vec![MixedType::Kept; self.weights.len()];
        for (at, ty) in matrices.into_iter().zip(types) {
            out[at] = ty;
        }
        Ok(out)
    }

    /// Says which types stand in for those that a mixture names, and for how many matrices.
    fn fallbacks(&self, mix: Mix) -> Result<Option<String>> {
        let mut counts = std::collections::BTreeMap::new();
        let mixed = self.mixed(mix)?;
        for ty in &mixed {
            let (wanted, instead) = match ty {
                MixedType::Kept | MixedType::Ggml(_) => continue,
                MixedType::Instead { wanted, instead } => (wanted, instead.to_string()),
                MixedType::F16 { wanted } => (wanted, "f16".into()),
            };
            *counts.entry((wanted.to_string(), instead)).or_insert(0usize) += 1;
        }
        let (all, instead): (usize, usize) =
            (mixed.iter().filter(|ty| **ty != MixedType::Kept).count(), counts.values().sum());
        let each = counts.iter().map(|((wanted, instead), n)| format!("{n} get {instead} for {wanted}"));
        let each = each.collect::<Vec<_>>().join(", ");
        Ok((instead > 0).then(|| {
            format!("rows of {instead} of {all} matrices are no whole blocks of the type that {mix} names: {each}, as in llama-quantize")
        }))
    }

    /// The scheme of a weight, unless loaders can't load it so and nobody named the weight.
    fn loadable(&self, weight: &Weight, chosen: Option<Scheme>, settings: &Settings) -> Option<Scheme> {
        let quantized = chosen.filter(|s| !matches!(s, Scheme::Float(_)));
        match quantized.and_then(|s| self.unloadable(weight, s, settings)) {
            Some(_) if !settings.rules.names(weight) => None,
            _ => chosen,
        }
    }

    /// The reason that loaders can't load a weight in the layout that it would get; none where they can.
    pub(crate) fn unloadable(&self, weight: &Weight, scheme: Scheme, settings: &Settings) -> Option<&'static str> {
        if settings.emulate.is_some() {
            return None;
        }
        let layout = settings.layout.or_else(|| default_layout(settings.target, scheme))?;
        loaders::stays_float(self, weight, layout, scheme)
    }

    /// The schemes that the artifact holds, the requested one first where it is among them.
    fn label(&self, scheme: Scheme, settings: &Settings, wanted: &[Option<Scheme>]) -> String {
        if let Some(mix) = settings.mix {
            return mix.to_string();
        }
        if matches!(scheme, Scheme::Float(_)) && settings.rules.recipe().is_none() {
            return scheme.to_string();
        }
        let mut held = BTreeSet::new();
        for (weight, &wanted) in self.weights.iter().zip(wanted) {
            match self.loadable(weight, wanted, settings) {
                Some(Scheme::Float(_)) if !weight.is_block_projection() => {}
                Some(scheme) => drop(held.insert(scheme.to_string())),
                None if weight.is_block_projection() => drop(held.insert(self.kept_name(weight, settings.target))),
                None => {}
            }
        }
        let first = scheme.to_string();
        let mut names: Vec<String> = held.take(&first).into_iter().collect();
        names.extend(held);
        if names.is_empty() { first } else { names.join("+") }
    }

    /// Name in the artifact of a projection that stays as it is.
    fn kept_name(&self, weight: &Weight, target: Target) -> String {
        match source::plain_dtype(weight) {
            Some(DType::Ggml(ty)) if target == Target::Gguf => format!("ggml-{ty}"),
            Some(dtype) => dtype.float().unwrap_or(self.float).to_string(),
            None => self.float.to_string(),
        }
    }

    fn lay(
        &self,
        weight: &Weight,
        name: &str,
        order: RowOrder,
        scheme: Option<Scheme>,
        settings: &Settings,
        wide: &HashSet<String>,
    ) -> Result<Laid, Misfit> {
        let quantized = scheme.filter(|s| !matches!(s, Scheme::Float(_)));
        let Some(scheme) = quantized else {
            let float = match scheme {
                Some(Scheme::Float(ty)) => Some(ty),
                _ => None,
            };
            return Ok(self.keep(weight, float, settings, name, order));
        };
        let &[rows, cols] = &weight.shape[..] else {
            return Err(misfit(weight, "only matrices are quantized".into(), "exclude it".into()));
        };
        let stats = settings.calibration.as_ref().and_then(|c| weight.modules().find_map(|m| c.module(m)));
        if scheme.needs_calibration() && stats.is_none() {
            let why = "the calibration has no statistics of it".into();
            return Err(misfit(weight, why, "calibrate with the same model, or exclude it".into()));
        }
        if stats.is_some_and(|s| s.len() != cols) {
            let why = "the calibration has another width".into();
            return Err(misfit(weight, why, "calibrate with the same model".into()));
        }
        let columns = stats.map(|s| outlier::outlier_columns(s, outlier::THRESHOLD)).unwrap_or_default();
        let request = layout::Request {
            name,
            rows,
            cols,
            scheme,
            scale: if wide.contains(&weight.name) { FloatType::F32 } else { FloatType::F16 },
            model_float: self.float,
            outlier_columns: &columns,
            activation_scale: stats.map(|s| s.iter().fold(0f32, |m, v| m.max(*v)) / 127.0),
        };
        let laid = match settings.layout {
            // Any layout would do for what is then decoded; these hold every scheme.
            None if settings.emulate.is_some() && matches!(scheme, Scheme::Ggml(_)) => {
                layout::lay(Layout::Ggml, &request)
            }
            None if settings.emulate.is_some() => layout::lay(Layout::Packed, &request),
            Some(layout) => layout::lay(layout, &request),
            None => lay_default(settings.target, &request),
        };
        let laid = laid.map_err(|no| misfit(weight, no.why, no.instead))?;
        if let Some(ty) = settings.emulate {
            return Ok(emulated(laid, weight, name, ty));
        }
        match artifact_checks::no_linear_module(self, weight, laid.layout) {
            Some((why, instead)) => Err(misfit(weight, why, instead)),
            None => Ok(laid),
        }
    }

    /// Name and row order in GGUF, whose models need a configuration; in safetensors (none
    /// given) both are the source's.
    fn artifact_name(&self, weight: &Weight, config: Option<&store::Config>) -> Result<(String, RowOrder)> {
        let Some(config) = config else {
            return Ok((weight.name.clone(), RowOrder::Natural));
        };
        let name = gguf::hf_to_gguf_name(&weight.name).ok_or_else(|| {
            store::Error::tensor(&self.model.path, &weight.name, "has no name in GGUF; use --to safetensors")
        })?;
        if weight.name.strip_suffix(".bias").is_some_and(|module| !gguf::reads_bias(config.family, module)) {
            let what = "llama.cpp reads no such bias of this family and refuses the file; use --to safetensors";
            return Err(store::Error::tensor(&self.model.path, &weight.name, what).into());
        }
        let rows = weight.shape.first().copied().unwrap_or_default();
        let rotary = config.family == store::Family::Llama
            && [".q_proj.", ".k_proj."].iter().any(|p| weight.name.contains(p))
            && weight.shape.len() <= 2
            && rows.is_multiple_of(config.head_dim);
        let order = if rotary { RowOrder::Interleaved { head_dim: config.head_dim } } else { RowOrder::Natural };
        Ok((name, order))
    }

    /// A weight that is not quantized: its bytes, or its values in a float type.
    fn keep(
        &self,
        weight: &Weight,
        float: Option<FloatType>,
        settings: &Settings,
        name: &str,
        order: RowOrder,
    ) -> Laid {
        let stored = source::plain_dtype(weight);
        let ggml_fits = settings.target == Target::Gguf;
        let is_float = |d: DType| d.float().is_some() || d == DType::F64;
        let one_dim = weight.shape.len() == 1 && stored.is_some_and(is_float);
        let dtype = match (float, stored) {
            // llama.cpp wants norms and biases in F32.
            _ if ggml_fits && one_dim => DType::F32,
            (Some(ty), Some(d)) if is_float(d) || matches!(d, DType::Ggml(_)) => ty.into(),
            (Some(ty), None) => ty.into(),
            (_, Some(d @ DType::Ggml(_))) if ggml_fits => d,
            // llama.cpp computes nothing in F64.
            (_, Some(DType::F64)) if ggml_fits => DType::from(self.float),
            (_, Some(DType::Ggml(_)) | None) => DType::from(self.float),
            (_, Some(d)) => d,
        };
        let same_order = match &weight.values {
            Values::Matrix(m) => m.order() == order && matches!(m.storage(), Storage::Float(..) | Storage::Ggml(..)),
            Values::Tensor(t) => t.order == order,
        };
        let encoding = match dtype.float() {
            Some(ty) if Some(dtype) != stored => Encoding::Float(ty),
            Some(ty) if !same_order => Encoding::Float(ty),
            _ => Encoding::Copy,
        };
        let bytes = match (&encoding, dtype.size()) {
            (Encoding::Copy, _) | (_, None) => weight.stored_bytes() as u64,
            (_, Some(size)) => (weight.count() * size) as u64,
        };
        let tensor = OutTensor {
            name: name.to_string(),
            dtype,
            shape: weight.shape.clone(),
            bytes,
            content: Content::Stream(0),
        };
        Laid { layout: Layout::Plain, encoding, tensors: vec![tensor], entry: None }
    }
}

/// The error of a model without a known configuration, which can't become a GGUF file.
fn no_config(model: &Model) -> Error {
    match model.config() {
        Err(e) => e.into(),
        Ok(_) => Error::Request("a GGUF file needs the model's config.json".into()),
    }
}

/// A plain tensor with what `laid` decodes to.
fn emulated(laid: Laid, weight: &Weight, name: &str, ty: FloatType) -> Laid {
    let tensor = OutTensor {
        name: name.to_string(),
        dtype: ty.into(),
        shape: weight.shape.clone(),
        bytes: (weight.count() * ty.size()) as u64,
        content: Content::Stream(0),
    };
    let encoding = Encoding::Emulated(Box::new(laid.encoding), ty);
    Laid { layout: Layout::Plain, encoding, tensors: vec![tensor], entry: None }
}

fn check_calibration(scheme: Scheme, settings: &Settings) -> Result<()> {
    let recipe = settings.rules.recipe();
    let needed = scheme.needs_calibration() || recipe.is_some_and(|r| r.schemes().any(Scheme::needs_calibration));
    if needed && settings.calibration.is_none() {
        return Err(Error::Request(format!(
            "{scheme} needs activation statistics: give --calibration-text FILE (or --calibration FILE)"
        )));
    }
    Ok(())
}

/// The layout of a scheme where none is asked for; of GGUF, where it depends on the shape, and of
/// schemes that the container can't hold, none.
fn default_layout(target: Target, scheme: Scheme) -> Option<Layout> {
    match (target, scheme) {
        (Target::Gguf, _) | (_, Scheme::Ggml(_)) => None,
        (Target::Safetensors, Scheme::Nf4 { .. }) => Some(Layout::Bitsandbytes),
        (Target::Safetensors, Scheme::Int8Outlier) => Some(Layout::Packed),
        (Target::Safetensors, _) => Some(Layout::CompressedTensors),
    }
}

fn lay_default(target: Target, request: &layout::Request<'_>) -> Result<Laid, layout::NoFit> {
    match (target, request.scheme, default_layout(target, request.scheme)) {
        (_, _, Some(layout)) => layout::lay(layout, request),
        (Target::Gguf, Scheme::Ggml(_), None) => layout::lay(Layout::Ggml, request),
        (Target::Gguf, _, None) => layout::lay(Layout::Ggml, request).or_else(|_| layout::lay(Layout::Packed, request)),
        (Target::Safetensors, _, None) => Err(layout::NoFit {
            why: "ggml blocks have no place in safetensors".into(),
            instead: "use --to gguf".into(),
        }),
    }
}

fn misfit(weight: &Weight, why: String, instead: String) -> Misfit {
    Misfit { weight: weight.name.clone(), shape: weight.shape.clone(), why, instead }
}

impl Plan {
    /// Bytes of tensor data.
    pub fn data_bytes(&self) -> u64 {
        self.weights.iter().flat_map(|w| &w.laid.tensors).map(|t| t.bytes).sum()
    }

    /// Bits for each quantized weight, in the scheme's own count and in this artifact's bytes.
    /// None when nothing is quantized.
    pub fn bits_per_weight(&self, source: &Source<'_>) -> Option<(f64, f64)> {
        let (mut nominal, mut stored, mut count) = (0.0, 0.0, 0usize);
        for w in self.weights.iter().filter(|w| w.scheme.is_some()) {
            let shape = &source.weights[w.index].shape;
            let (scale, columns) = match w.laid.encoding.codes() {
                Encoding::Outlier { columns, scale } => (*scale, columns.len()),
                Encoding::Int { scale, .. } | Encoding::Nf4(scale) => (*scale, 0),
                _ => (FloatType::F32, 0),
            };
            if let (Some(scheme), &[rows, cols]) = (w.scheme, &shape[..]) {
                nominal += scheme.total_bits(rows, cols, columns, scale);
                count += rows * cols;
            }
            let streams = w.laid.tensors.iter().filter(|t| matches!(t.content, Content::Stream(_)));
            stored += 8.0 * streams.map(|t| t.bytes as f64).sum::<f64>();
        }
        (count > 0).then(|| (nominal / count as f64, stored / count as f64))
    }

    /// The layouts of the quantized weights, each with how many weights have it.
    pub fn layouts(&self) -> Vec<(Layout, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for w in self.weights.iter().filter(|w| w.scheme.is_some()) {
            *counts.entry(w.laid.layout).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }
}
