//! Training from text alone: the tokenizer and the model.

use crate::checkpoint::Output;
use crate::data::{Corpus, Sampler};
use crate::error::{Error, Result};
use crate::gradient::Window;
use crate::memory;
use crate::model::Student;
use crate::ops::Objective;
use crate::recipe::{Recipe, TrainRecipe};
use crate::resume;
use crate::tokenizer;
use crate::train::{Drawn, Finished, Job, Progress, Source, train};
use candle_core::{DType, Device};
use store::TrainedOn;
use store::output::WorkFolder;

/// Text to train on.
#[derive(Debug, Clone, Default)]
pub struct Texts {
    /// Running text, one document each.
    pub running: Vec<String>,
    /// Sentences, one a line.
    pub sentences: Vec<String>,
}

/// Trains a tokenizer and a model, and leaves the model with the best validation loss in the
/// folder that was begun for it.
///
/// # Errors
/// What [`train`] says, texts that are too short, and a recipe or model that can't be.
pub fn pretrain(
    recipe: &Recipe,
    texts: &Texts,
    device: &Device,
    work: WorkFolder,
    progress: &mut dyn Progress,
) -> Result<Finished> {
    recipe.check()?;
    let train_recipe = &recipe.train;
    let everything: Vec<String> = texts.running.iter().chain(&texts.sentences).cloned().collect();
    let tokenizer = tokenizer::train(&everything, recipe.tokenizer.vocabulary)?;
    let (longest, share) = (train_recipe.longest(), train_recipe.validation_share);
    let corpus = Corpus::new(&tokenizer, &texts.running, &texts.sentences, longest, share)?;
    if corpus.validation.is_empty() {
        return Err(Error::Text("no part of it is left for validation; raise validation_share".into()));
    }
    memory::check_student(device, &recipe.model, recipe.tokenizer.vocabulary, false)?;
    let student =
        Student::new(&recipe.model, recipe.tokenizer.vocabulary, DType::F32, train_recipe.seed)?.on(device)?;
    let mut output = Output::of_pretrained(work, &recipe.model, &tokenizer)?;
    output.metadata.insert(TrainedOn::KEY.into(), corpus.documents.to_string());
    let sampler = Sampler::new(&corpus, train_recipe.sentence_share, train_recipe.seed);
    let mut source = Batches { corpus: &corpus, sampler, recipe: train_recipe };
    let mut hash = blake3::Hasher::new();
    everything.iter().for_each(|text| {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    });
    let mut identity = resume::fields(&recipe.model)?;
    identity.extend(resume::fields(train_recipe)?);
    identity.insert("vocabulary".into(), recipe.tokenizer.vocabulary.to_string());
    identity.insert("text".into(), hash.finalize().to_string());
    let mut job = Job {
        student: &student,
        source: &mut source,
        objective: Objective::HARD,
        recipe: train_recipe,
        output: &output,
        tokenizer: &tokenizer,
        identity,
    };
    train(&mut job, progress)
}

/// Batches of a corpus, as a recipe wants them.
struct Batches<'a> {
    corpus: &'a Corpus,
    sampler: Sampler<'a>,
    recipe: &'a TrainRecipe,
}

impl Source for Batches<'_> {
    fn describe(&self) -> String {
        format!(
            "{} tokens to train on and {} sentences; {} tokens for validation",
            self.corpus.training_tokens(),
            self.corpus.sentences.len(),
            self.corpus.validation.iter().map(Vec::len).sum::<usize>()
        )
    }

    fn draw(&mut self, step: usize) -> Result<Vec<Vec<Drawn>>> {
        let recipe = self.recipe;
        let long = step as f64 > recipe.steps as f64 * (1.0 - recipe.long_share);
        let context = if long { recipe.longest() } else { recipe.context };
        let rows = recipe.batch * recipe.context / context;
        let batch = self.sampler.batch(rows, context)?;
        let windows: Vec<Drawn> = batch.chunks(context + 1).map(|w| Drawn::Text(w.into())).collect();
        Ok(windows.chunks(rows / recipe.parts()).map(<[_]>::to_vec).collect())
    }

    fn held_out(&self) -> Vec<Drawn> {
        self.corpus.validation.iter().map(|block| Drawn::Text(block.clone())).collect()
    }

    fn window(&mut self, drawn: &Drawn, _labelled: bool) -> Result<Window> {
        match drawn {
            Drawn::Text(tokens) => Ok(Window { tokens: tokens.clone(), soft: None }),
            Drawn::Window(_) => Err(Error::Text("a corpus has no numbered windows".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::{Step, Validation};
    use crate::{checkpoint, testing};
    use std::path::Path;
    use store::output::Begin;

    fn pretrain(
        recipe: &Recipe,
        texts: &Texts,
        device: &Device,
        folder: &Path,
        begin: Begin,
        progress: &mut dyn Progress,
    ) -> Result<Finished> {
        super::pretrain(recipe, texts, device, checkpoint::begin(folder, begin, &[])?, progress)
    }

    fn texts() -> Texts {
        Texts { running: vec![testing::TEXT.repeat(20)], sentences: vec![testing::SENTENCES.into()] }
    }

    fn train(recipe: &Recipe) -> (tempfile::TempDir, Log) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut log = Log::default();
        pretrain(recipe, &texts(), &Device::Cpu, folder.path(), Begin::New, &mut log).expect("it trains");
        (folder, log)
    }

    #[derive(Default)]
    struct Log {
        losses: Vec<f64>,
        validations: Vec<Validation>,
    }

    impl Progress for Log {
        fn stepped(&mut self, step: &Step) {
            self.losses.push(step.loss);
        }
        fn validated(&mut self, validation: &Validation) {
            self.validations.push(validation.clone());
        }
    }

    fn weights(folder: &tempfile::TempDir) -> Vec<u8> {
        std::fs::read(folder.path().join("model.safetensors")).expect("the weights")
    }

    #[test]
    fn loss_falls_on_a_repeated_text() {
        let (folder, log) = train(&testing::recipe());
        assert_eq!(log.losses.len(), 100);
        assert!((log.losses[0] - 300f64.ln()).abs() < 0.5, "begins at {}", log.losses[0]);
        let last = log.losses[90..].iter().sum::<f64>() / 10.0;
        assert!(last < 0.6 * log.losses[0], "ends at {last}");
        assert_eq!(log.validations.len(), 5);
        let files = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl"];
        assert!(files.iter().all(|f| folder.path().join(f).is_file()));
        let count = std::fs::read_dir(folder.path()).expect("the folder").count();
        assert_eq!(count, 6, "temporary files are left");
    }

    #[test]
    fn same_seed_same_bytes() {
        let mut recipe = testing::recipe();
        recipe.train.steps = 8;
        recipe.train.dropout = 0.1;
        let (first, again) = (train(&recipe), train(&recipe));
        assert_eq!(weights(&first.0), weights(&again.0));
        recipe.train.seed += 1;
        assert_ne!(weights(&first.0), weights(&train(&recipe).0));
    }

    #[test]
    fn an_interrupted_training_resumes_to_the_same_bytes() {
        let mut recipe = testing::recipe();
        recipe.train = TrainRecipe { steps: 12, validate_every: 4, dropout: 0.1, ..recipe.train };
        let (whole, _) = train(&recipe);
        let folder = tempfile::tempdir().expect("a folder");
        let into = folder.path().join("model");
        let go = |recipe: &Recipe, begin, progress: &mut dyn Progress| {
            pretrain(recipe, &texts(), &Device::Cpu, &into, begin, progress)
        };
        let stopped =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| go(&recipe, Begin::New, &mut testing::Stop(7))));
        assert!(stopped.is_err());
        let again = go(&recipe, Begin::New, &mut ()).expect_err("a state is left").to_string();
        assert!(again.contains("--resume"), "{again}");
        let mut other = recipe.clone();
        other.train.learning_rate *= 2.0;
        let error = go(&other, Begin::Resume, &mut ()).expect_err("another training").to_string();
        assert!(error.contains("with learning_rate 0.02, not 0.04"), "{error}");
        let finished = go(&recipe, Begin::Resume, &mut ()).expect("it resumes");
        assert_eq!((finished.steps, finished.stopped_early), (12, false));
        let file = |folder: &Path, name: &str| std::fs::read(folder.join(name)).expect(name);
        for name in ["model.safetensors", "metrics.jsonl", "config.json"] {
            assert_eq!(file(&into, name), file(whole.path(), name), "{name}");
        }
        let left = std::fs::read_dir(folder.path()).expect("the folder").count();
        assert_eq!(left, 1, "the state is left behind");
        assert!(
            go(&recipe, Begin::Resume, &mut ())
                .expect_err("nothing to resume")
                .to_string()
                .contains("leave out --resume")
        );
    }

    #[test]
    fn patience_ends_a_training() {
        let mut recipe = testing::recipe();
        recipe.train = TrainRecipe { steps: 1000, validate_every: 2, patience: Some(3), ..recipe.train };
        recipe.train.learning_rate = 1e-12;
        let folder = tempfile::tempdir().expect("a folder");
        let finished =
            pretrain(&recipe, &texts(), &Device::Cpu, folder.path(), Begin::New, &mut ()).expect("it trains");
        assert!(finished.stopped_early && finished.steps < 1000, "{finished:?}");
        assert!(finished.best.step < finished.steps);
    }

    #[test]
    fn threads_change_nothing() {
        let mut recipe = testing::recipe();
        recipe.train.steps = 6;
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let bytes = |threads| pool(threads).install(|| weights(&train(&recipe).0));
        assert_eq!(bytes(1), bytes(3));
    }

    #[test]
    fn divergence_is_an_error() {
        let mut recipe = testing::recipe();
        recipe.train.learning_rate = 1e30;
        recipe.train.warmup = 0;
        let folder = tempfile::tempdir().expect("a folder");
        let error = pretrain(&recipe, &texts(), &Device::Cpu, folder.path(), Begin::New, &mut ())
            .expect_err("it can't converge");
        assert!(matches!(error, Error::Diverged { .. }), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "nothing is left behind");
    }

    #[test]
    fn an_occupied_folder_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("precious"), "x").expect("a file");
        let error = pretrain(&testing::recipe(), &texts(), &Device::Cpu, folder.path(), Begin::New, &mut ())
            .expect_err("occupied");
        assert!(matches!(error, Error::Store(store::Error::Exists { .. })), "{error}");
        let error = pretrain(&testing::recipe(), &texts(), &Device::Cpu, folder.path(), Begin::Overwrite, &mut ());
        let error = error.expect_err("no model");
        assert!(matches!(error, Error::Store(store::Error::Foreign { .. })), "{error}");
    }

    #[test]
    fn too_little_text_is_an_error() {
        let short = Texts { running: vec!["The whale.".into()], sentences: vec![] };
        let folder = tempfile::tempdir().expect("a folder");
        let error = pretrain(&testing::recipe(), &short, &Device::Cpu, folder.path(), Begin::New, &mut ())
            .expect_err("too short");
        assert!(matches!(error, Error::Text(_)), "{error}");
        let none = std::fs::read_dir(folder.path()).expect("the folder").count();
        assert_eq!(none, 0);
    }
}
