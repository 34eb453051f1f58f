//! Activations: which dimensions of the residual stream and of the inputs of linear layers are
//! large, on which tokens, and what that leaves of INT8.
//!
//! The model runs twice: maxima come first, since the scales follow from them, then the codes that
//! these scales give. Nothing is kept of a token but its largest value.

use crate::{Calibration, Collector, Error};
use progress::{Progress, Unit};
use rowmath::round::nearest_i32;
use runtime::{Observer, Transformer};
use std::collections::BTreeMap;

/// The largest code.
const QMAX: f32 = 127.0;

/// The smallest exponent of two that has an octave of its own.
const LOWEST: i32 = -24;

/// Octaves from 2^-24 on; what is smaller or larger lies in the outermost ones.
const OCTAVES: usize = 64;

/// Tokens count as reaching a dimension's maximum from this share of it on.
const REACH: f32 = 0.25;

/// A place that is watched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The residual stream after this block.
    Residual(usize),
    /// The input of this module and of those that share it (q, k and v; gate and up).
    Input(String),
}

/// Position of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Index of the sequence.
    pub sequence: usize,
    /// Index of the token in the sequence.
    pub token: usize,
}

/// Tokens that carry a large dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// The first token of a sequence alone: elsewhere the dimension stays below a quarter.
    FirstToken,
    /// Some tokens: fewer than half reach a quarter of the maximum.
    SomeTokens,
    /// At least half of all tokens reach a quarter of the maximum.
    AllTokens,
}

/// One dimension.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Dimension {
    /// Largest |x|.
    pub absmax: f32,
    /// The token that has it, the first of several.
    pub at: Position,
    /// Largest |x| without the first token of each sequence.
    pub absmax_later: f32,
    /// Tokens that reach a quarter of the maximum.
    pub reach: usize,
}

/// Statistics of INT8 codes under one way to choose scales.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Codes {
    /// The scale; of many the median.
    pub scale: f32,
    /// Different codes in use, of 255; of many scales the median.
    pub levels: f64,
    /// Share of the values that become 0.
    pub zeros: f64,
}

/// Statistics of one place.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Tokens.
    pub tokens: usize,
    /// The dimensions.
    pub dimensions: Vec<Dimension>,
    /// Median of the dimensions' largest |x|.
    pub median: f32,
    /// Values by the power of two at or below |x|, from the first octave that has any to the last.
    pub octaves: Vec<(i32, u64)>,
    /// Values that are zero, which have no octave.
    pub zeros: u64,
    /// One scale for everything.
    pub tensor: Codes,
    /// One scale for each token.
    pub token: Codes,
    /// One scale for each dimension.
    pub channel: Codes,
    /// One scale, the largest dimensions taken out.
    pub without_top: Codes,
    /// One scale, the first token of each sequence taken out; none where there are no others.
    pub without_first: Option<Codes>,
}

impl Site {
    /// The largest |x|.
    pub fn max(&self) -> f32 {
        self.dimensions.iter().fold(0.0, |m, d| m.max(d.absmax))
    }

    /// The largest |x| without the first token of each sequence.
    pub fn max_later(&self) -> f32 {
        self.dimensions.iter().fold(0.0, |m, d| m.max(d.absmax_later))
    }

    /// The dimensions with the largest maxima, the largest first.
    pub fn top(&self, k: usize) -> Vec<usize> {
        let absmax: Vec<f32> = self.dimensions.iter().map(|d| d.absmax).collect();
        largest(&absmax, k)
    }

    /// Returns the tokens that carry a dimension.
    pub fn carrier(&self, dimension: usize) -> Carrier {
        let Some(d) = self.dimensions.get(dimension) else { return Carrier::SomeTokens };
        if 2 * d.reach >= self.tokens {
            Carrier::AllTokens
        } else if d.at.token == 0 && d.absmax_later < REACH * d.absmax {
            Carrier::FirstToken
        } else {
            Carrier::SomeTokens
        }
    }
}

/// Everything that was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Activations {
    /// By place; residual streams in order of their blocks.
    pub sites: BTreeMap<Place, Site>,
    /// The maxima of all linear layers, for conversion.
    pub calibration: Calibration,
}

/// Runs `model` over the sequences and watches; `without` is how many of the largest dimensions
/// [`Site::without_top`] takes out.
///
/// # Errors
/// [`Error::Empty`], [`Error::NotFinite`], or what the runtime says.
pub fn watch(
    model: &Transformer,
    sequences: &[&[u32]],
    without: usize,
    progress: &dyn Progress,
) -> Result<Activations, Error> {
    let tokens: usize = sequences.iter().map(|s| s.len()).sum();
    if sequences.iter().all(|s| s.is_empty()) {
        return Err(Error::Empty);
    }
    let mut maxima = Maxima::default();
    run(model, sequences, "activations: maxima", progress, &mut maxima, |maxima, sequence| maxima.sequence = sequence)?;
    // In the model's order, so that the first block is named.
    for (place, seen) in &maxima.sites {
        if seen.dimensions.iter().any(|d| !d.absmax.is_finite()) {
            return Err(Error::NotFinite(match place {
                Place::Residual(block) => format!("the stream after block {block}"),
                Place::Input(module) => format!("the input of {module}"),
            }));
        }
    }
    let calibration = maxima.collector.finish(tokens)?;
    let sites = maxima.sites.into_iter().map(|(place, seen)| (place, Coder::new(seen, without))).collect();
    let mut coders = Coders { sites };
    run(model, sequences, "activations: codes", progress, &mut coders, |_, _| {})?;
    let sites = coders.sites.into_iter().map(|(place, coder)| (place, coder.finish())).collect();
    Ok(Activations { sites, calibration })
}

fn run<O: Observer>(
    model: &Transformer,
    sequences: &[&[u32]],
    what: &str,
    progress: &dyn Progress,
    observer: &mut O,
    mut begin: impl FnMut(&mut O, usize),
) -> Result<(), Error> {
    progress.start(what, Some(sequences.iter().map(|s| s.len() as u64).sum()), Unit::Tokens);
    for (at, sequence) in sequences.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
        begin(observer, at);
        model.hidden_observed(&[sequence], observer)?;
        progress.advance(sequence.len() as u64);
    }
    progress.finish();
    Ok(())
}

/// The input of q is that of k and v, too, and the input of gate that of up.
fn shares_its_input(module: &str) -> bool {
    [".k_proj", ".v_proj", ".up_proj"].iter().any(|kind| module.ends_with(kind))
}

/// Statistics of the first pass at one place.
#[derive(Debug, Clone, Default)]
struct Seen {
    dimensions: Vec<Dimension>,
    /// The largest |x| of each token.
    tokens: Vec<f32>,
    octaves: Vec<u64>,
    zeros: u64,
}

/// The first pass.
#[derive(Debug, Default)]
struct Maxima {
    sequence: usize,
    collector: Collector,
    sites: BTreeMap<Place, Seen>,
}

impl Observer for Maxima {
    fn linear_input(&mut self, module: &str, rows: &[f32], cols: usize) {
        self.collector.linear_input(module, rows, cols);
        if !shares_its_input(module) {
            let sequence = self.sequence;
            self.sites.entry(Place::Input(module.into())).or_default().add(rows, cols, sequence);
        }
    }

    fn residual(&mut self, layer: usize, rows: &[f32], cols: usize) {
        let sequence = self.sequence;
        self.sites.entry(Place::Residual(layer)).or_default().add(rows, cols, sequence);
    }
}

impl Seen {
    fn add(&mut self, rows: &[f32], cols: usize, sequence: usize) {
        self.dimensions.resize(cols, Dimension::default());
        self.octaves.resize(OCTAVES, 0);
        for (token, row) in rows.chunks_exact(cols.max(1)).enumerate() {
            let mut max = 0f32;
            for (dimension, x) in self.dimensions.iter_mut().zip(row) {
                let x = x.abs();
                max = max.max(x);
                // A NaN stays once seen: nothing is larger.
                if x > dimension.absmax || x.is_nan() {
                    (dimension.absmax, dimension.at) = (x, Position { sequence, token });
                }
                if token > 0 {
                    dimension.absmax_later = dimension.absmax_later.max(x);
                }
                match octave(x) {
                    Some(at) => self.octaves[at] += 1,
                    None => self.zeros += 1,
                }
            }
            self.tokens.push(max);
        }
    }
}

/// The octave of |x|; none for zero.
fn octave(x: f32) -> Option<usize> {
    let exponent = (x.to_bits() >> 23) as i32 - 127;
    (x != 0.0).then(|| (exponent - LOWEST).clamp(0, OCTAVES as i32 - 1) as usize)
}

/// A set of codes from -127 to 127.
#[derive(Debug, Clone, Copy, Default)]
struct CodeSet([u64; 4]);

impl CodeSet {
    fn insert(&mut self, code: i32) {
        let at = (code + 127) as usize;
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// The codes under one scale.
#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    scale: f32,
    codes: CodeSet,
    zeros: u64,
    values: u64,
}

impl Counter {
    fn with_absmax(absmax: f32) -> Self {
        Counter { scale: absmax / QMAX, ..Counter::default() }
    }

    fn add(&mut self, x: f32) {
        let code = if self.scale > 0.0 { nearest_i32((x / self.scale).clamp(-QMAX, QMAX)) } else { 0 };
        self.codes.insert(code);
        self.zeros += u64::from(code == 0);
        self.values += 1;
    }

    fn codes(&self) -> Codes {
        summary(std::slice::from_ref(self))
    }
}

/// Medians over some scales, and the share of zeros over all.
fn summary(counters: &[Counter]) -> Codes {
    let values: u64 = counters.iter().map(|c| c.values).sum();
    let zeros: u64 = counters.iter().map(|c| c.zeros).sum();
    Codes {
        scale: median(counters.iter().map(|c| c.scale).collect()),
        levels: f64::from(median(counters.iter().map(|c| c.codes.len() as f32).collect())),
        zeros: if values == 0 { 0.0 } else { zeros as f64 / values as f64 },
    }
}

/// The median, the mean of both in the middle; 0 of nothing.
fn median(mut values: Vec<f32>) -> f32 {
    values.sort_by(f32::total_cmp);
    match values.len() {
        0 => 0.0,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

/// The indices of the `k` largest, the largest first; of equal ones the first.
fn largest(values: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(k);
    order
}

/// The second pass.
struct Coders {
    sites: BTreeMap<Place, Coder>,
}

/// Counts of the second pass at one place.
struct Coder {
    seen: Seen,
    taken_out: Vec<bool>,
    tensor: Counter,
    without_top: Counter,
    without_first: Counter,
    channels: Vec<Counter>,
    tokens: Vec<Counter>,
}

impl Coder {
    fn new(seen: Seen, without: usize) -> Self {
        let absmax: Vec<f32> = seen.dimensions.iter().map(|d| d.absmax).collect();
        let mut taken_out = vec![false; absmax.len()];
        largest(&absmax, without).into_iter().for_each(|d| taken_out[d] = true);
        let max = |values: &mut dyn Iterator<Item = f32>| values.fold(0f32, f32::max);
        let rest = max(&mut absmax.iter().zip(&taken_out).filter(|(_, out)| !**out).map(|(m, _)| *m));
        Coder {
            tensor: Counter::with_absmax(max(&mut absmax.iter().copied())),
            without_top: Counter::with_absmax(rest),
            without_first: Counter::with_absmax(max(&mut seen.dimensions.iter().map(|d| d.absmax_later))),
            channels: absmax.iter().map(|&m| Counter::with_absmax(m)).collect(),
            tokens: Vec::with_capacity(seen.tokens.len()),
            taken_out,
            seen,
        }
    }

    fn add(&mut self, rows: &[f32], cols: usize) {
        for (token, row) in rows.chunks_exact(cols.max(1)).enumerate() {
            let absmax = self.seen.tokens.get(self.tokens.len()).copied().unwrap_or(0.0);
            let mut own = Counter::with_absmax(absmax);
            let dimensions = self.seen.dimensions.iter_mut().zip(&mut self.channels).zip(&self.taken_out);
            for (((dimension, channel), taken_out), &x) in dimensions.zip(row) {
                dimension.reach += usize::from(dimension.absmax > 0.0 && x.abs() >= REACH * dimension.absmax);
                self.tensor.add(x);
                own.add(x);
                channel.add(x);
                if !taken_out {
                    self.without_top.add(x);
                }
                if token > 0 {
                    self.without_first.add(x);
                }
            }
            self.tokens.push(own);
        }
    }

    fn finish(self) -> Site {
        let counts = self.seen.octaves;
        let first = counts.iter().position(|&n| n > 0).unwrap_or(0);
        let last = counts.iter().rposition(|&n| n > 0).map_or(0, |at| at + 1);
        let octaves = (first..last).map(|at| (at as i32 + LOWEST, counts[at]));
        Site {
            tokens: self.tokens.len(),
            median: median(self.seen.dimensions.iter().map(|d| d.absmax).collect()),
            octaves: octaves.collect(),
            zeros: self.seen.zeros,
            tensor: self.tensor.codes(),
            token: summary(&self.tokens),
            channel: summary(&self.channels),
            without_top: self.without_top.codes(),
            without_first: (self.without_first.values > 0).then(|| self.without_first.codes()),
            dimensions: self.seen.dimensions,
        }
    }
}

impl Observer for Coders {
    fn linear_input(&mut self, module: &str, rows: &[f32], cols: usize) {
        if let Some(coder) = self.sites.get_mut(&Place::Input(module.into())) {
            coder.add(rows, cols);
        }
    }

    fn residual(&mut self, layer: usize, rows: &[f32], cols: usize) {
        if let Some(coder) = self.sites.get_mut(&Place::Residual(layer)) {
            coder.add(rows, cols);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(sequences: &[&[f32]], cols: usize, without: usize) -> Site {
        let mut seen = Seen::default();
        sequences.iter().enumerate().for_each(|(at, rows)| seen.add(rows, cols, at));
        let mut coder = Coder::new(seen, without);
        sequences.iter().for_each(|rows| coder.add(rows, cols));
        coder.finish()
    }

    #[test]
    fn a_sink_and_an_outlier_of_all_tokens_are_told_apart() {
        // Dimension 0 is large on the first token alone, dimension 1 everywhere.
        let found = site(&[&[1000.0, 50.0, 1.0, 0.5, 2.0, -60.0, 0.5, 1.0, 1.0, 55.0, -1.5, 0.0]], 4, 1);
        assert_eq!(found.top(2), [0, 1]);
        assert_eq!((found.carrier(0), found.carrier(1)), (Carrier::FirstToken, Carrier::AllTokens));
        assert_eq!((found.max(), found.max_later(), found.tokens), (1000.0, 60.0, 3));
        assert_eq!(found.dimensions[1].at, Position { sequence: 0, token: 1 });
        assert_eq!((found.median, found.zeros), ((60.0 + 1.5) / 2.0, 1));
        assert_eq!(found.octaves.iter().map(|(_, n)| n).sum::<u64>(), 11);
        assert_eq!((found.octaves[0], found.octaves[found.octaves.len() - 1]), ((-1, 2), (9, 1)));
    }

    #[test]
    fn codes_under_each_kind_of_scale() {
        let found = site(&[&[1000.0, 50.0, 1.0, 0.5, 2.0, -60.0, 0.5, 1.0, 1.0, 55.0, -1.5, 0.0]], 4, 1);
        // Steps of 7.87: 1000, 50, -60 and 55 are 127, 6, -8 and 7.
        assert_eq!((found.tensor.levels, found.tensor.zeros), (5.0, 8.0 / 12.0));
        assert_eq!(found.tensor.scale, 1000.0 / 127.0);
        // Steps of 0.47 without dimension 0.
        assert_eq!(found.without_top.scale, 60.0 / 127.0);
        assert!(found.without_top.zeros < 0.2 && found.without_top.levels > 5.0);
        assert_eq!(found.without_first.map(|c| c.scale), Some(60.0 / 127.0));
        assert!(found.channel.zeros < found.tensor.zeros);
        assert_eq!(found.token.levels, 4.0, "the median of 3, 4 and 4 codes");
    }

    #[test]
    fn the_second_sequence_has_a_first_token_too() {
        let found = site(&[&[1.0, 1.0], &[9.0, 8.0]], 1, 0);
        assert_eq!(found.dimensions[0].at, Position { sequence: 1, token: 0 });
        assert_eq!(found.max_later(), 8.0);
        assert_eq!(site(&[&[1.0]], 1, 1).without_first, None);
    }

    #[test]
    fn all_codes_are_counted() {
        let ramp: Vec<f32> = (-127..=127).map(|i| i as f32).collect();
        let found = site(&[&ramp], 255, 0);
        assert_eq!((found.tensor.levels, found.tensor.zeros), (255.0, 1.0 / 255.0));
        assert_eq!(site(&[&[0.0, 0.0]], 2, 0).tensor, Codes { scale: 0.0, levels: 1.0, zeros: 1.0 });
    }

    #[test]
    fn rounding_is_to_nearest_ties_to_even() {
        for i in -1016..=1016 {
            let x = i as f32 / 8.0;
            assert_eq!(nearest_i32(x), x.round_ties_even() as i32, "{x}");
        }
    }

    #[test]
    fn a_nan_stays() {
        let mut seen = Seen::default();
        seen.add(&[1.0, f32::NAN, 2.0], 1, 0);
        assert!(seen.dimensions[0].absmax.is_nan());
    }
}
