//! The training loop, for distillation and for training from text alone.

use crate::checkpoint::{self, Output};
use crate::error::{Error, Result};
use crate::gradient::{Gradients, Window, losses};
use crate::memory;
use crate::metrics::{self, Metrics};
use crate::model::{Dropout, Student};
use crate::ops::{Divergence, Losses, Objective};
use crate::optim::{AdamW, learning_rate};
use crate::random;
use crate::recipe::TrainRecipe;
use crate::resume::{self, Identity, State};
use candle_core::{D, IndexOp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Instant;
use store::output::Begin;
use tokenizers::Tokenizer;

/// Told about the training as it goes.
pub trait Progress {
    /// Training is about to begin.
    fn started(&mut self, _start: &Start) {}
    /// A step is done.
    fn stepped(&mut self, _step: &Step) {}
    /// A validation is done.
    fn validated(&mut self, _validation: &Validation) {}
    /// A sample of the student's text, after a validation.
    fn sampled(&mut self, _text: &str) {}
}

/// Wants to know nothing.
impl Progress for () {}

/// Facts about a training that is about to start.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Optimizer steps.
    pub steps: usize,
    /// Steps that are done already.
    pub done: usize,
    /// Weights of the model.
    pub weights: usize,
    /// Number of weights that are trained.
    pub trained: usize,
    /// Training and held-out text, in words.
    pub text: String,
    /// Name of the device.
    pub device: String,
}

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Counted from 1.
    pub step: usize,
    /// The objective's mean over the batch.
    pub loss: f64,
    /// The mean cross-entropy against the text, in nats a token.
    pub cross_entropy: f64,
    /// The mean divergence from the teacher at the temperature, in nats; for sampled labels the cross-entropy to them.
    pub divergence: Option<f64>,
    /// Norm of the gradient before clipping.
    pub gradient: f64,
    /// Learning rate.
    pub rate: f64,
    /// Predictions in the batch.
    pub predictions: usize,
}

/// One validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Validation {
    /// After this step.
    pub step: usize,
    /// Mean cross-entropy against the held-out text, in nats a token.
    pub loss: f64,
    /// Exponential of the validation.
    pub perplexity: f64,
    /// Mean KL(teacher || student) at the temperature, in nats; for sampled labels the cross-entropy to them.
    pub kl: Option<f64>,
    /// The mean over the held-out text of what the training minimizes; `loss` at alpha 0.
    pub objective: f64,
    /// True if the objective is the lowest so far, and so the model was saved.
    pub best: bool,
}

/// Results of a training.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Finished {
    /// Steps done.
    pub steps: usize,
    /// True if patience ran out before the last step.
    pub stopped_early: bool,
    /// The validation of the model that was kept.
    pub best: Validation,
    /// Time of each phase, since this call began.
    pub seconds: Seconds,
}

/// Time of each phase.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, JsonSchema)]
pub struct Seconds {
    /// Running the teacher, or reading its labels, for the steps.
    pub teacher: f64,
    /// The rest of the steps.
    pub student: f64,
    /// Validation, samples and saving.
    pub validation: f64,
}

/// Source of windows.
pub trait Source {
    /// Describes training and held-out text, in words.
    fn describe(&self) -> String;
    /// The windows of the next step, in the parts that gradients are computed for. The same seed draws the same.
    fn draw(&mut self, step: usize) -> Result<Vec<Vec<Drawn>>>;
    /// Returns the windows that are never trained on.
    fn held_out(&self) -> Vec<Drawn>;
    /// Bytes that the labels of a prediction take in memory.
    fn label_bytes(&self) -> u64 {
        0
    }
    /// The window itself, with the teacher's labels if they are wanted and there are any.
    fn window(&mut self, drawn: &Drawn, labelled: bool) -> Result<Window>;
}

/// A window that was drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Drawn {
    /// Text without a teacher.
    Text(Vec<u32>),
    /// One of [`Windows`](crate::windows::Windows), by its index.
    Window(usize),
}

/// A training.
pub struct Job<'a> {
    /// Student that is trained.
    pub student: &'a Student,
    /// Source of its windows.
    pub source: &'a mut dyn Source,
    /// Loss that is minimized.
    pub objective: Objective,
    /// Optimizer, schedule and batches.
    pub recipe: &'a TrainRecipe,
    /// Destination of the best model.
    pub output: &'a Output,
    /// Reads and writes the sample.
    pub tokenizer: &'a Tokenizer,
    /// Tells one training from another: a state saved under another identity isn't resumed. To which kind of device it
    /// belongs is added.
    pub identity: Identity,
}

/// The file beside the output that an interrupted training is resumed from.
pub fn state_file(folder: &Path) -> PathBuf {
    // Without a slash at the end, after which it would be a file in the folder.
    let mut name = folder.components().as_path().as_os_str().to_owned();
    name.push(".resume.safetensors");
    name.into()
}

/// Trains, and leaves the model with the lowest objective on the held-out text in the output's folder: what is trained is
/// also what chooses, at `alpha` 1 the soft loss. Where the folder was begun with [`Begin::Resume`], this goes on where an
/// earlier call was interrupted, to the same numbers.
///
/// # Errors
/// [`Error::Diverged`], [`Error::Resume`], and what source and output say.
pub fn train(job: &mut Job<'_>, progress: &mut dyn Progress) -> Result<Finished> {
    // However it was asked for.
    job.identity.insert("parts".into(), job.recipe.parts().to_string());
    if !job.student.device().is_cpu() {
        // Its sums are others than the CPU's.
        job.identity.insert("device".into(), "gpu".into());
    }
    let output = job.output;
    output.check_names()?;
    let done = go(job, progress);
    if done.is_err() && output.work.how() != Begin::Resume && !state_file(output.folder()).exists() {
        output.discard();
    }
    done.map_err(explained)
}

fn go(job: &mut Job<'_>, progress: &mut dyn Progress) -> Result<Finished> {
    let mut trainer = Trainer::begin(job)?;
    progress.started(&Start {
        steps: job.recipe.steps,
        done: trainer.step,
        weights: job.student.weights(),
        trained: trainer.gradients.parameters().iter().map(|p| p.var.elem_count()).sum(),
        text: job.source.describe(),
        device: runtime::device_name(job.student.device()),
    });
    let recipe = job.recipe;
    while trainer.step < recipe.steps && !trainer.out_of_patience(recipe) {
        let began = Instant::now();
        let teacher = trainer.seconds.teacher;
        let step = trainer.step(job)?;
        trainer.seconds.student += began.elapsed().as_secs_f64() - (trainer.seconds.teacher - teacher);
        trainer.metrics.add(&step)?;
        progress.stepped(&step);
        if trainer.step.is_multiple_of(recipe.validate_every) || trainer.step == recipe.steps {
            let began = Instant::now();
            progress.validated(&trainer.validate(job)?);
            if let Some(text) = sample(job)? {
                progress.sampled(&text);
            }
            trainer.save_state(job)?;
            trainer.seconds.validation += began.elapsed().as_secs_f64();
        }
    }
    let best = trainer.best.ok_or_else(|| Error::Recipe("steps must be at least 1".into()))?;
    let (state, folder) = (state_file(job.output.folder()), job.output.folder());
    if trainer.displaced {
        return Err(resume::displaced(&state, folder, checkpoint::WEIGHTS));
    }
    resume::remove(&state)?;
    Ok(Finished { steps: trainer.step, stopped_early: trainer.step < recipe.steps, best, seconds: trainer.seconds })
}

struct Trainer {
    step: usize,
    optimizer: AdamW,
    gradients: Gradients,
    best: Option<Validation>,
    /// Validations since the best one.
    waited: usize,
    /// BLAKE3 of the best one's weights.
    saved: String,
    /// True if other weights were found in their place: those of a better model, if the end came between saving that
    /// and the state. It is then found again; what isn't was put there by somebody else.
    displaced: bool,
    metrics: Metrics,
    seconds: Seconds,
}

impl Trainer {
    fn begin(job: &mut Job<'_>) -> Result<Self> {
        let path = state_file(job.output.folder());
        check_memory(job)?;
        let gradients = Gradients::new(job.student)?;
        let folder = job.output.folder();
        if job.output.work.how() != Begin::Resume {
            let optimizer = AdamW::new(gradients.parameters(), job.recipe)?;
            let metrics = Metrics::begin(folder);
            return Ok(Self {
                step: 0,
                optimizer,
                gradients,
                best: None,
                waited: 0,
                saved: String::new(),
                displaced: false,
                metrics,
                seconds: Seconds::default(),
            });
        }
        let State { step, moments, best, waited, output } = resume::load(&path, &job.identity, gradients.parameters())?;
        resume::check_output(&path, folder)?;
        let other = |name| resume::displaced(&path, folder, name);
        let displaced = job.output.weights_blake3()? != output.weights;
        if displaced {
            let file = job.output.weights();
            store::safetensors::read(&file, &store::Bytes::map(&file)?).map_err(|_| other(checkpoint::WEIGHTS))?;
        }
        let metrics = Metrics::resume(folder, &output.metrics)?.ok_or_else(|| other(metrics::FILE))?;
        job.output.save_missing()?;
        // What was drawn before is drawn again, so that what follows is the same.
        for earlier in 1..=step {
            job.source.draw(earlier)?;
        }
        let optimizer = AdamW::resumed(moments, step as i32, job.recipe);
        let (saved, seconds) = (output.weights, Seconds::default());
        Ok(Self { step, optimizer, gradients, best, waited, saved, displaced, metrics, seconds })
    }

    fn out_of_patience(&self, recipe: &TrainRecipe) -> bool {
        recipe.patience.is_some_and(|patience| self.waited >= patience)
    }

    fn step(&mut self, job: &mut Job<'_>) -> Result<Step> {
        self.step += 1;
        let (step, recipe) = (self.step, job.recipe);
        let parts = job.source.draw(step)?;
        let objective = &job.objective;
        let mut sum = Losses::default();
        self.gradients.clear()?;
        // The labels of a part exist while that part is worked on: for a whole vocabulary they are large. That leaves
        // the number of all predictions unknown until the end, when everything is divided by it.
        for (index, part) in parts.iter().enumerate() {
            let labelled = objective.alpha > 0.0;
            let began = Instant::now();
            let windows = part.iter().map(|d| job.source.window(d, labelled)).collect::<Result<Vec<_>>>()?;
            self.seconds.teacher += began.elapsed().as_secs_f64();
            let stream = random::DROPOUT + (step * parts.len() + index) as u64;
            let mut dropout = Dropout::new(recipe.dropout, recipe.seed, stream);
            let into = Some((&mut self.gradients, 1.0));
            sum.add(&losses(job.student, &windows, objective, Some(&mut dropout), into)?);
        }
        let share = 1.0 / sum.predictions as f64;
        let loss = sum.mean(objective);
        check_finite(step, "the loss", loss)?;
        let norm = self.gradients.average(sum.predictions, recipe.clip)?;
        check_finite(step, "the gradient's norm", norm)?;
        let rate = learning_rate(recipe, step);
        self.optimizer.step(&self.gradients, rate)?;
        let divergence = (objective.alpha > 0.0).then_some(sum.soft * share);
        let cross_entropy = sum.hard * share;
        Ok(Step { step, loss, cross_entropy, divergence, gradient: norm, rate, predictions: sum.predictions })
    }

    fn validate(&mut self, job: &mut Job<'_>) -> Result<Validation> {
        let held_out = job.source.held_out();
        let trained = job.objective;
        // The divergence that is shown is KL(teacher || student) in every training.
        let shown = Objective { divergence: Divergence::Forward, alpha: 0.0, ..trained };
        let is_shown = trained.alpha == 0.0 || trained.divergence == Divergence::Forward;
        let (mut sum, mut other) = (Losses::default(), Losses::default());
        let mut labelled = true;
        for drawn in held_out.chunks((job.recipe.batch / job.recipe.parts()).max(1)) {
            let windows = drawn.iter().map(|d| job.source.window(d, true)).collect::<Result<Vec<_>>>()?;
            labelled &= windows.iter().all(|w| w.soft.is_some());
            sum.add(&losses(job.student, &windows, &shown, None, None)?);
            if !is_shown {
                other.add(&losses(job.student, &windows, &trained, None, None)?);
            }
        }
        let loss = sum.hard / sum.predictions as f64;
        check_finite(self.step, "the validation loss", loss)?;
        let kl = labelled.then_some(sum.soft / sum.predictions as f64);
        let objective = if is_shown { sum.mean(&trained) } else { other.mean(&trained) };
        check_finite(self.step, "the validation's objective", objective)?;
        let best = self.best.as_ref().is_none_or(|b| objective < b.objective);
        let validation = Validation { step: self.step, loss, perplexity: loss.exp(), kl, objective, best };
        self.waited = if best { 0 } else { self.waited + 1 };
        if best {
            job.output.save(job.student)?;
            (self.saved, self.displaced) = (job.output.weights_blake3()?, false);
            self.best = Some(validation.clone());
        }
        self.metrics.add(&validation)?;
        Ok(validation)
    }

    fn save_state(&mut self, job: &Job<'_>) -> Result<()> {
        self.metrics.sync()?;
        let (path, folder) = (state_file(job.output.folder()), job.output.folder());
        // What was taken away meanwhile would be missed at the end only.
        resume::check_output(&path, folder)?;
        let state = resume::View {
            step: self.step,
            optimizer: &self.optimizer,
            best: self.best.as_ref(),
            waited: self.waited,
            output: &resume::Saved { weights: self.saved.clone(), metrics: self.metrics.written() },
        };
        resume::save(&path, &job.identity, self.gradients.parameters(), &state)
    }
}

/// Refuses batches that can't fit into what is available on the student's device, beside the rest.
fn check_memory(job: &Job<'_>) -> Result<()> {
    let (student, recipe) = (job.student, job.recipe);
    let context = recipe.longest();
    let windows = recipe.batch * recipe.context / context / recipe.parts();
    let tokens = (windows * context) as u64;
    // The weights are there already.
    let frozen = student.parameters().iter().any(|p| !p.trained);
    let held = student.shape().training_bytes(student.vocabulary(), frozen);
    let held = held.and_then(|bytes| bytes.checked_sub(4 * student.weights() as u64));
    let labels = tokens.checked_mul(job.source.label_bytes());
    let all = [held, student.activations(tokens, context as u64), labels];
    let bytes = all.into_iter().try_fold(0u64, |sum, bytes| sum.checked_add(bytes?));
    let what =
        format!("the optimizer's state, and what {windows} windows of {context} tokens leave for their gradients,");
    memory::check(student.device(), &what, bytes, "take a smaller batch, or more parts of it")
}

/// An error in words that help where a GPU had no memory left for a tensor.
fn explained(error: Error) -> Error {
    let text = error.to_string();
    if !text.contains("OUT_OF_MEMORY") {
        return error;
    }
    let way_out = "take a smaller batch, more parts of it, or a shorter context";
    Error::Memory(format!("the GPU has no memory left ({}); {way_out}", text.lines().next().unwrap_or_default()))
}

fn check_finite(step: usize, what: &'static str, value: f64) -> Result<()> {
    if value.is_finite() { Ok(()) } else { Err(Error::Diverged { step, what, value }) }
}

/// Tokens of held-out text that a sample continues, and by how many.
const SAMPLE: (usize, usize) = (12, 24);

/// The likeliest continuation of the beginning of the held-out text.
fn sample(job: &mut Job<'_>) -> Result<Option<String>> {
    let Some(first) = job.source.held_out().into_iter().next() else { return Ok(None) };
    let mut tokens = match first {
        Drawn::Text(tokens) => tokens,
        window => job.source.window(&window, false)?.tokens,
    };
    tokens.truncate(SAMPLE.0);
    let prompt = tokens.len();
    let longest = job.student.shape().max_positions;
    while tokens.len() < (prompt + SAMPLE.1).min(longest) {
        let hidden = job.student.hidden(&tokens, tokens.len(), None)?.hidden.detach();
        let logits = hidden.i(tokens.len() - 1..)?.matmul(&job.student.head().t()?)?;
        tokens.push(logits.argmax(D::Minus1)?.to_vec1::<u32>()?[0]);
    }
    let text = |ids: &[u32]| job.tokenizer.decode(ids, false).map_err(|e| Error::Tokenizer(e.to_string()));
    Ok(Some(format!("{} | {}", text(&tokens[..prompt])?, text(&tokens[prompt..])?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_without_memory_is_explained() {
        let short = candle_core::Error::Msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")\n at x".into());
        let text = explained(short.into()).to_string();
        assert!(
            text.contains("CUDA_ERROR_OUT_OF_MEMORY") && text.contains("more parts") && !text.contains('\n'),
            "{text}"
        );
        assert!(matches!(explained(Error::Text("short".into())), Error::Text(_)));
    }
}
