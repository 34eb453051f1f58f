//! The student at its start: from a shape of its own, cut from the teacher, or another model.
//!
//! A cut in depth keeps whole blocks; [`width`](crate::width) says what a cut in width keeps.

use crate::checkpoint::{Output, metadata};
use crate::error::{Error, Result};
use crate::memory;
use crate::model::{EMBEDDING, HEAD, Student};
use crate::recipe::{self, Shape};
use crate::width::{Kept, keep};
use candle_core::{DType, Device};
use schemes::{FloatType, Matrix};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};
use store::output::WorkFolder;
use store::{Bytes, Config, Family, RopeScaling};

/// Origin of a student, as `--student` gives it.
#[derive(Debug, Clone, PartialEq)]
pub enum Spec {
    /// `FILE.toml`: a shape of its own, with random weights.
    Fresh(Sketch),
    /// `layers:0,2,5`: these blocks of the teacher, counted from 0.
    Layers(Vec<usize>),
    /// `width:hidden=..,intermediate=..,heads=..,kv_heads=..`: the teacher, narrower. What isn't given stays.
    Width(Width),
    /// A model folder or file: training goes on from there.
    Model(PathBuf),
}

/// A student's shape; what isn't here is the teacher's.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sketch {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Dimensions of one head (default: `hidden / heads`).
    pub head_dim: Option<usize>,
    /// Width of the feed-forward block.
    pub intermediate: usize,
    /// True if the output projection is the embedding (the default).
    pub tied: Option<bool>,
    /// Origin of the embeddings.
    #[serde(default)]
    pub embeddings: Embeddings,
}

/// Origin of the embeddings of a student of its own shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Embeddings {
    /// Random.
    #[default]
    Fresh,
    /// The teacher's values; the widths must be equal.
    Teacher,
}

/// A narrower teacher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Width {
    /// Width of the residual stream.
    pub hidden: Option<usize>,
    /// Width of the feed-forward block.
    pub intermediate: Option<usize>,
    /// Query heads.
    pub heads: Option<usize>,
    /// Key and value heads.
    pub kv_heads: Option<usize>,
}

impl Spec {
    /// Understands `--student`.
    ///
    /// # Errors
    /// [`Error::Student`], [`Error::Io`] or [`Error::Toml`], with what is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(list) = text.strip_prefix("layers:") {
            let layers = list.split(',').map(|n| n.trim().parse::<usize>().ok()).collect::<Option<Vec<_>>>();
            let layers = layers.filter(|l| l.windows(2).all(|w| w[0] < w[1]));
            let bad =
                || Error::Student(format!("'{text}': give the blocks to keep in ascending order, as layers:0,2,5"));
            return layers.map(Spec::Layers).ok_or_else(bad);
        }
        if let Some(list) = text.strip_prefix("width:") {
            return width(list).map(Spec::Width).ok_or_else(|| {
                let form = "width:hidden=384,intermediate=1024,heads=6,kv_heads=2, with any of these";
                Error::Student(format!("'{text}': give {form}"))
            });
        }
        let path = Path::new(text);
        if path.extension().is_some_and(|e| e == "toml") {
            return recipe::read(path).map(Spec::Fresh);
        }
        if !path.exists() {
            let forms = "a FILE.toml, layers:0,2,5, width:hidden=384 or a model";
            return Err(Error::Student(format!("'{text}' is none of {forms}")));
        }
        Ok(Spec::Model(path.into()))
    }
}

/// Formats the option's value, with a file's contents in place of its name.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Fresh(sketch) => f.write_str(&serde_json::to_string(sketch).map_err(|_| fmt::Error)?),
            Spec::Layers(kept) => {
                let kept: Vec<String> = kept.iter().map(usize::to_string).collect();
                write!(f, "layers:{}", kept.join(","))
            }
            Spec::Width(Width { hidden, intermediate, heads, kv_heads }) => {
                let named =
                    [("hidden", hidden), ("intermediate", intermediate), ("heads", heads), ("kv_heads", kv_heads)];
                let given: Vec<String> =
                    named.iter().filter_map(|(name, n)| n.map(|n| format!("{name}={n}"))).collect();
                write!(f, "width:{}", given.join(","))
            }
            Spec::Model(path) => path.display().fmt(f),
        }
    }
}

fn width(list: &str) -> Option<Width> {
    let mut width = Width::default();
    for setting in list.split(',') {
        let (key, value) = setting.split_once('=')?;
        let place = match key.trim() {
            "hidden" => &mut width.hidden,
            "intermediate" => &mut width.intermediate,
            "heads" => &mut width.heads,
            "kv_heads" => &mut width.kv_heads,
            _ => return None,
        };
        if place.replace(value.trim().parse().ok()?).is_some() {
            return None;
        }
    }
    Some(width)
}

/// The shape of a model that this crate can train.
///
/// # Errors
/// [`Error::Malformed`] names what isn't supported.
pub fn shape_of(model: &store::Model) -> Result<Shape> {
    let config = model.config()?;
    let refuse = |what: &str| Err(Error::malformed(&model.path, what));
    if config.family == Family::Qwen3 {
        return refuse("students of Qwen3 models are not supported; Llama's and Qwen2's are");
    }
    if config.rope_scaling != RopeScaling::None {
        return refuse("its rope scaling is not supported in training");
    }
    let linear = |module: &str| model.linear(&format!("model.layers.0.{module}"));
    for module in ["self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] {
        if linear(module)?.bias.is_some() {
            return refuse(&format!("biases of {module} are not supported in training"));
        }
    }
    let Config { hidden_size, layers, heads, kv_heads, head_dim, intermediate_size, .. } = config;
    Ok(Shape {
        hidden: hidden_size,
        layers,
        heads,
        kv_heads,
        head_dim,
        intermediate: intermediate_size,
        max_positions: config.max_position,
        rope_theta: config.rope_theta,
        rms_norm_eps: config.rms_norm_eps,
        biases: linear("self_attn.q_proj")?.bias.is_some(),
        tied: config.tie_word_embeddings,
    })
}

/// Makes the student on a device. Its vocabulary has as many entries as the teacher's embedding has rows.
///
/// # Errors
/// [`Error::Student`] for what doesn't fit the teacher, [`Error::Store`] for weights that can't be read,
/// [`Error::Memory`] for what can't be trained there.
pub fn build(
    spec: &Spec,
    teacher: &store::Model,
    freeze_embeddings: bool,
    seed: u64,
    device: &Device,
) -> Result<Student> {
    let full = shape_of(teacher)?;
    let vocabulary = teacher.config()?.vocab_size;
    let fits = |shape: &Shape| memory::check_student(device, shape, vocabulary, freeze_embeddings);
    let student = match spec {
        Spec::Fresh(sketch) => {
            let shape = sketched(sketch, &full);
            fits(&shape)?;
            fresh(sketch, teacher, &shape, vocabulary, freeze_embeddings, seed)?
        }
        Spec::Layers(kept) => {
            if let Some(beyond) = kept.iter().find(|&&l| l >= full.layers) {
                return Err(Error::Student(format!("the teacher has blocks 0 to {}, no {beyond}", full.layers - 1)));
            }
            let shape = Shape { layers: kept.len(), ..full };
            fits(&shape)?;
            let cut = Cut { model: teacher, layers: kept.clone(), kept: None };
            Student::build(&shape, vocabulary, DType::F32, &mut |name, dims| cut.values(name, dims))?
        }
        Spec::Width(width) => {
            let shape = narrowed(width, &full)?;
            fits(&shape)?;
            let kept = keep(teacher, &full, &shape)?;
            let cut = Cut { model: teacher, layers: (0..full.layers).collect(), kept: Some(kept) };
            Student::build(&shape, vocabulary, DType::F32, &mut |name, dims| cut.values(name, dims))?
        }
        Spec::Model(path) => {
            let model = store::open(path)?;
            check_tokenizer(teacher, &model, vocabulary)?;
            let shape = shape_of(&model)?;
            fits(&shape)?;
            let cut = Cut { model: &model, layers: (0..shape.layers).collect(), kept: None };
            Student::build(&shape, vocabulary, DType::F32, &mut |name, dims| cut.values(name, dims))?
        }
    };
    if freeze_embeddings { student.with_frozen_embeddings() } else { student }.on(device)
}

/// The shape of a sketch; what it doesn't say is the teacher's.
fn sketched(sketch: &Sketch, full: &Shape) -> Shape {
    let Sketch { hidden, layers, heads, kv_heads, intermediate, .. } = *sketch;
    let head_dim = sketch.head_dim.unwrap_or(hidden / heads.max(1));
    let tied = sketch.tied.unwrap_or(true);
    Shape { hidden, layers, heads, kv_heads, head_dim, intermediate, tied, ..full.clone() }
}

fn fresh(
    sketch: &Sketch,
    teacher: &store::Model,
    shape: &Shape,
    vocabulary: usize,
    frozen: bool,
    seed: u64,
) -> Result<Student> {
    let student = Student::new(shape, vocabulary, DType::F32, seed)?;
    if sketch.embeddings == Embeddings::Fresh {
        if frozen {
            let what = "random embeddings that aren't trained are of no use; set embeddings = \"teacher\"";
            return Err(Error::Student(what.into()));
        }
        return Ok(student);
    }
    let (wide, hidden) = (teacher.config()?.hidden_size, shape.hidden);
    if hidden != wide {
        let what = format!("embeddings {wide} wide don't fit a student {hidden} wide");
        return Err(Error::Student(what));
    }
    let cut = Cut { model: teacher, layers: vec![], kept: None };
    for parameter in student.parameters().iter().filter(|p| [EMBEDDING, HEAD].contains(&p.name.as_str())) {
        let dims = parameter.var.dims();
        let values = cut.values(&parameter.name, dims)?;
        parameter.var.set(&candle_core::Tensor::from_vec(values, dims, parameter.var.device())?)?;
    }
    Ok(student)
}

/// A student model must make the teacher's tokens of a text, and know them; then vocabularies differ by padding only.
fn check_tokenizer(teacher: &store::Model, student: &store::Model, vocabulary: usize) -> Result<()> {
    let (of_teacher, of_student) = (teacher.text_tokenizer()?, student.text_tokenizer()?);
    if of_teacher.blake3() == of_student.blake3() {
        let rows = student.config()?.vocab_size;
        let tokens = of_student.vocabulary().last_key_value().map_or(0, |(&id, _)| id as usize + 1);
        if rows >= tokens.min(vocabulary) {
            return Ok(());
        }
        let what = format!("its embedding has {rows} rows, its tokenizer {tokens} tokens: it can't predict them all");
        return Err(Error::malformed(&student.path, what));
    }
    let what = format!(
        "its tokenizer, of {} entries, is not the teacher's, of {}: soft labels are over the teacher's tokens; give a \
         student with the teacher's tokenizer",
        of_student.vocabulary().len(),
        of_teacher.vocabulary().len()
    );
    Err(Error::malformed(&student.path, what))
}

/// A part of a model, as a student's weights.
struct Cut<'a> {
    model: &'a store::Model,
    /// Index in the model of each of the student's blocks.
    layers: Vec<usize>,
    /// All of everything, unless given.
    kept: Option<Kept>,
}

impl Cut<'_> {
    /// The values of the student's tensor `name`, row-major.
    fn values(&self, name: &str, dims: &[usize]) -> Result<Vec<f32>> {
        let (source, layer) = self.source(name)?;
        let values = self.read(name, dims, &source, layer)?;
        match values.iter().find(|v| !v.is_finite()) {
            Some(value) => Err(Error::malformed(&self.model.path, format!("'{source}' holds the value {value}"))),
            None => Ok(values),
        }
    }

    /// Reads a tensor from `source`, of this block.
    fn read(&self, name: &str, dims: &[usize], source: &str, layer: usize) -> Result<Vec<f32>> {
        let (rows, columns) = match &self.kept {
            Some(kept) => kept.in_tensor(name, layer),
            None => (None, None),
        };
        let wrong = |found: String| Error::malformed(&self.model.path, format!("'{source}' is {found}, not {dims:?}"));
        if let &[count, width] = dims {
            let linear = self.model.linear(source.trim_end_matches(".weight"))?;
            return matrix(&linear.matrix, rows, columns, (count, width), name == EMBEDDING || name == HEAD)
                .ok_or_else(|| wrong(format!("[{}, {}]", linear.matrix.rows(), linear.matrix.cols())));
        }
        let values = match source.strip_suffix(".bias") {
            Some(module) => self.model.linear(module)?.bias,
            None => self.model.dense(source)?,
        };
        let values = values.ok_or_else(|| wrong("missing".into()))?;
        let picked: Option<Vec<f32>> = match rows {
            Some(rows) => rows.iter().map(|&r| values.get(r).copied()).collect(),
            None => Some(values),
        };
        picked.filter(|v| v.len() == dims.iter().product::<usize>()).ok_or_else(|| wrong("of another length".into()))
    }

    /// The model's name for the student's tensor, and its block.
    fn source(&self, name: &str) -> Result<(String, usize)> {
        let Some((layer, rest)) = name.strip_prefix("model.layers.").and_then(|n| n.split_once('.')) else {
            return Ok((name.into(), 0));
        };
        let layer = layer.parse::<usize>().ok().and_then(|l| self.layers.get(l).copied());
        let layer = layer.ok_or_else(|| Error::Student(format!("'{name}' is no tensor of a student")))?;
        Ok((format!("model.layers.{layer}.{rest}"), layer))
    }
}

/// Some rows and columns of a matrix, of the size that is wanted; none where it is another. Rows of a vocabulary that
/// are missing are padding, and zero.
fn matrix(
    matrix: &Matrix<Bytes>,
    rows: Option<&[usize]>,
    columns: Option<&[usize]>,
    (count, width): (usize, usize),
    vocabulary: bool,
) -> Option<Vec<f32>> {
    let found = (rows.map_or(matrix.rows(), <[_]>::len), columns.map_or(matrix.cols(), <[_]>::len));
    if found.1 != width || (found.0 != count && !vocabulary) {
        return None;
    }
    let mut row = vec![0f32; matrix.cols()];
    let mut values = Vec::with_capacity(count * width);
    for i in 0..count.min(found.0) {
        matrix.decode_row(rows.map_or(i, |rows| rows[i]), &mut row);
        match columns {
            Some(columns) => values.extend(columns.iter().map(|&c| row[c])),
            None => values.extend_from_slice(&row),
        }
    }
    values.resize(count * width, 0.0);
    Some(values)
}

/// The shape of a teacher that is made narrower.
fn narrowed(width: &Width, full: &Shape) -> Result<Shape> {
    let shape = Shape {
        hidden: width.hidden.unwrap_or(full.hidden),
        intermediate: width.intermediate.unwrap_or(full.intermediate),
        heads: width.heads.unwrap_or(full.heads),
        kv_heads: width.kv_heads.unwrap_or(full.kv_heads),
        ..full.clone()
    };
    shape.check()?;
    for (what, wanted, most) in [
        ("hidden", shape.hidden, full.hidden),
        ("intermediate", shape.intermediate, full.intermediate),
        ("heads", shape.heads, full.heads),
        ("kv_heads", shape.kv_heads, full.kv_heads),
        ("heads / kv_heads", shape.group(), full.group()),
    ] {
        if wanted > most {
            return Err(Error::Student(format!("{what} is {wanted}, the teacher's {most}: a cut can't be wider")));
        }
    }
    Ok(shape)
}

impl Output {
    /// A student's folder: the teacher's configuration with the student's sizes, and the teacher's tokenizer files.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the teacher has no config.json.
    pub fn of_student(work: WorkFolder, teacher: &store::Model, student: &Student, float: FloatType) -> Result<Self> {
        let Some(Value::Object(mut config)) = teacher.config_json.clone() else {
            return Err(Error::malformed(&teacher.path, "the teacher has no config.json"));
        };
        let shape = student.shape();
        for other_method in ["quantization_config", "compression_config", "layer_types", "dtype", "_name_or_path"] {
            config.shift_remove(other_method);
        }
        let sizes = json!({
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "vocab_size": student.vocabulary(),
            "tie_word_embeddings": shape.tied,
            "torch_dtype": match float {
                FloatType::F32 => "float32",
                FloatType::F16 => "float16",
                FloatType::BF16 => "bfloat16",
            },
        });
        if let Value::Object(sizes) = sizes {
            config.extend(sizes);
        }
        if let Some(layers) = config.get_mut("max_window_layers") {
            *layers = json!(shape.layers);
        }
        let files = teacher.side_files.iter().filter(|f| travels(&f.name));
        Ok(Self {
            work,
            config: Value::Object(config),
            files: files.map(|f| (f.name.clone(), f.data.to_vec())).collect(),
            float,
            metadata: metadata(),
        })
    }
}

/// Returns whether a file beside the teacher is the student's as well.
fn travels(name: &str) -> bool {
    const NAMES: [&str; 5] =
        ["generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"];
    NAMES.contains(&name) || name.starts_with("tokenizer") || name.starts_with("chat_template")
}

#[cfg(test)]
#[path = "student_tests.rs"]
mod tests;
