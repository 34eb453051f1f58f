//! Activations of a model on a text: large dimensions, the tokens that carry them, and the INT8 levels that they leave.

use crate::text::{self, Cut, Text};
use crate::{Error, Result, place};
use observe::Calibration;
use observe::activations::{Carrier, Codes, Place, Position, Site, watch};
use progress::Progress;
use schemars::JsonSchema;
use scoring::Encoder;
use scoring::load::Compute;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Request {
    /// The text.
    pub text: Text,
    /// Cut of the text into sequences.
    pub cut: Cut,
    /// Number of the largest dimensions that are listed for each place.
    pub top: usize,
    /// Number of the largest dimensions that are taken out to see what they cost.
    pub without: usize,
    /// Device and arithmetic of the model.
    pub compute: Compute,
}

/// A large dimension.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Large {
    /// Index of the dimension.
    pub dimension: usize,
    /// Largest |x| of the dimension.
    pub absmax: f32,
    /// The sequence and the token that have it.
    pub sequence: usize,
    /// The token's position in the sequence.
    pub position: usize,
    /// The token as text.
    pub token: String,
    /// Largest |x| of the dimension without the first token of each sequence.
    pub without_first: f32,
    /// Tokens that reach a quarter of the maximum.
    pub reached_by: usize,
    /// `first token`, `some tokens` or `all tokens`.
    pub carried_by: &'static str,
}

/// INT8 codes under one way to choose scales.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Int8 {
    /// The scale; of many the median.
    pub scale: f32,
    /// Different codes in use, of 255; of many scales the median.
    pub levels: f64,
    /// Share of values that become 0.
    pub zeros: f64,
}

/// Values between a power of two and the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Octave {
    /// The exponent of the lower end.
    pub exponent: i32,
    /// Number of values.
    pub values: u64,
}

/// Statistics of one place.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Seen {
    /// `residual`, or the module whose input it is.
    pub place: String,
    /// The block.
    pub block: Option<usize>,
    /// The kind of layer; `residual` for the stream after a block.
    pub kind: String,
    /// Dimensions.
    pub dimensions: usize,
    /// Tokens.
    pub tokens: usize,
    /// Largest |x|.
    pub max: f32,
    /// Largest |x| without the first token of each sequence.
    pub max_without_first: f32,
    /// Median of the dimensions' largest |x|.
    pub median: f32,
    /// The largest dimensions.
    pub top: Vec<Large>,
    /// One scale for everything.
    pub tensor: Int8,
    /// One scale for each token.
    pub token: Int8,
    /// One scale for each dimension.
    pub channel: Int8,
    /// One scale, the largest dimensions taken out.
    pub without_top: Int8,
    /// One scale, the first token of each sequence taken out.
    pub without_first: Option<Int8>,
    /// Values by octave.
    pub octaves: Vec<Octave>,
    /// Values that are zero.
    pub zeros: u64,
}

/// A dimension that is among the largest after several blocks.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Persistent {
    /// Index of the dimension.
    pub dimension: usize,
    /// Blocks after which it is among the largest.
    pub blocks: usize,
    /// The first of them.
    pub first_block: usize,
    /// The last of them.
    pub last_block: usize,
    /// Its largest |x| after each block.
    pub absmax: Vec<f32>,
}

/// Results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Activations {
    /// The model.
    pub model: String,
    /// The text's name.
    pub text: String,
    /// Tokens that were run, begin-of-sequence tokens among them.
    pub tokens: usize,
    /// Sequences.
    pub sequences: usize,
    /// Number of dimensions that are listed.
    pub listed: usize,
    /// Number of dimensions that `without_top` takes out.
    pub without: usize,
    /// The residual stream after each block.
    pub residual: Vec<Seen>,
    /// The inputs of linear layers; q, k and v share one, and so do gate and up.
    pub inputs: Vec<Seen>,
    /// Dimensions that are among the largest after at least two blocks, the most frequent first.
    pub persistent: Vec<Persistent>,
    /// The statistics that conversion takes.
    #[serde(skip)]
    pub calibration: Calibration,
    /// Things that a user should know.
    pub notes: Vec<String>,
}

/// Runs a model on a text and watches.
///
/// # Errors
/// When the model can't be opened or run, or the text is empty.
pub fn look(path: &Path, request: &Request, progress: &dyn Progress) -> Result<Activations> {
    if request.top == 0 {
        return Err(Error::Request("--top takes at least 1".into()));
    }
    let model = store::open(path)?;
    let encoder = text::encoder(&model)?;
    let sequences = text::sequences(&request.cut, &encoder, &request.text)?;
    let runtime = |source| scoring::Error::Runtime { model: path.display().to_string(), source };
    let Compute { device, options, .. } = &request.compute;
    let transformer = runtime::Transformer::load_with(&model, device, options).map_err(runtime)?;
    let views: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let found = watch(&transformer, &views, request.without, progress)?;
    let naming = Naming { encoder: &encoder, sequences: &sequences, listed: request.top };
    let (mut residual, mut inputs) = (Vec::new(), Vec::new());
    for (place, site) in &found.sites {
        match place {
            Place::Residual(block) => residual.push(naming.seen("residual", Some(*block), "residual", site)),
            Place::Input(module) => inputs.push(naming.seen(module, place::block(module), shared_kind(module), site)),
        }
    }
    // Names sort 10 before 2.
    inputs.sort_by_key(|seen| (seen.block.unwrap_or(usize::MAX), order(&seen.kind)));
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let beyond = text::beyond_training(&model, longest)?;
    Ok(Activations {
        model: path.display().to_string(),
        text: request.text.name.clone(),
        tokens: sequences.iter().map(Vec::len).sum(),
        sequences: sequences.len(),
        listed: request.top,
        without: request.without,
        persistent: persistent(&found.sites, request.top),
        residual,
        inputs,
        calibration: found.calibration,
        notes: model.warnings.iter().cloned().chain(beyond).chain(request.compute.note()).collect(),
    })
}

/// The kinds of layers that share an input, by the one whose input was watched.
fn shared_kind(module: &str) -> &str {
    match place::kind(module) {
        "q_proj" => "q, k, v",
        "gate_proj" => "gate, up",
        "o_proj" => "o",
        "down_proj" => "down",
        other => other,
    }
}

/// In which order a block's layers run.
fn order(kind: &str) -> usize {
    ["q, k, v", "o", "gate, up", "down"].iter().position(|k| *k == kind).unwrap_or(usize::MAX)
}

/// Texts and tokenizer that turn positions into tokens.
struct Naming<'a> {
    encoder: &'a Encoder,
    sequences: &'a [Vec<u32>],
    listed: usize,
}

impl Naming<'_> {
    fn seen(&self, place: &str, block: Option<usize>, kind: &str, site: &Site) -> Seen {
        Seen {
            place: place.into(),
            block,
            kind: kind.into(),
            dimensions: site.dimensions.len(),
            tokens: site.tokens,
            max: site.max(),
            max_without_first: site.max_later(),
            median: site.median,
            top: site.top(self.listed).into_iter().map(|dimension| self.large(site, dimension)).collect(),
            tensor: int8(site.tensor),
            token: int8(site.token),
            channel: int8(site.channel),
            without_top: int8(site.without_top),
            without_first: site.without_first.map(int8),
            octaves: site.octaves.iter().map(|&(exponent, values)| Octave { exponent, values }).collect(),
            zeros: site.zeros,
        }
    }

    fn large(&self, site: &Site, dimension: usize) -> Large {
        let found = site.dimensions[dimension];
        Large {
            dimension,
            absmax: found.absmax,
            sequence: found.at.sequence,
            position: found.at.token,
            token: self.token(found.at),
            without_first: found.absmax_later,
            reached_by: found.reach,
            carried_by: match site.carrier(dimension) {
                Carrier::FirstToken => "first token",
                Carrier::SomeTokens => "some tokens",
                Carrier::AllTokens => "all tokens",
            },
        }
    }

    /// The token as text; its number where it has none of its own.
    fn token(&self, at: Position) -> String {
        let id = self.sequences.get(at.sequence).and_then(|sequence| sequence.get(at.token));
        let Some(&id) = id else { return String::new() };
        match self.encoder.decode(&[id]) {
            Ok(text) if !text.is_empty() && !text.contains('\u{fffd}') => text,
            _ => format!("#{id}"),
        }
    }
}

fn int8(codes: Codes) -> Int8 {
    Int8 { scale: codes.scale, levels: codes.levels, zeros: codes.zeros }
}

/// Dimensions among the `top` largest after at least two blocks.
fn persistent(sites: &BTreeMap<Place, Site>, top: usize) -> Vec<Persistent> {
    let residual: Vec<&Site> =
        sites.iter().filter(|(place, _)| matches!(place, Place::Residual(_))).map(|(_, site)| site).collect();
    let mut blocks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (block, site) in residual.iter().enumerate() {
        for dimension in site.top(top) {
            blocks.entry(dimension).or_default().push(block);
        }
    }
    let mut found: Vec<Persistent> = blocks
        .into_iter()
        .filter(|(_, blocks)| blocks.len() > 1)
        .map(|(dimension, blocks)| Persistent {
            dimension,
            blocks: blocks.len(),
            first_block: blocks[0],
            last_block: blocks[blocks.len() - 1],
            absmax: residual.iter().map(|site| site.dimensions[dimension].absmax).collect(),
        })
        .collect();
    found.sort_by_key(|p| (std::cmp::Reverse(p.blocks), p.dimension));
    found
}
