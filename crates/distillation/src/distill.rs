//! Training on a text that was cut into windows, with a teacher's labels or without.

use crate::error::{Error, Result};
use crate::gradient::Window;
use crate::model::Student;
use crate::ops::Objective;
use crate::random::{self, ChaCha8Rng};
use crate::recipe::TrainRecipe;
use crate::soft::Teacher;
use crate::train::{Drawn, Source};
use crate::windows::{Split, Windows};
use rand::seq::SliceRandom;

/// The windows of a text, and who labels them.
pub struct Text<'a> {
    windows: &'a Windows,
    split: Split,
    teacher: Option<&'a mut dyn Teacher>,
    batch: usize,
    parts: usize,
    rng: ChaCha8Rng,
    /// Windows of this pass over the text that are left, in reverse order.
    deck: Vec<usize>,
}

impl<'a> Text<'a> {
    /// A source of batches as `recipe` wants them. Each pass over the text draws every window once, in another order;
    /// windows keep their labels wherever they are drawn.
    ///
    /// # Errors
    /// [`Error::Student`] when teacher and student have vocabularies of unlike size, [`Error::Recipe`] for what only
    /// a corpus has, [`Error::Labels`] when the objective needs a teacher, [`Error::Text`] for too short a text.
    pub fn new(
        windows: &'a Windows,
        teacher: Option<&'a mut dyn Teacher>,
        student: &Student,
        objective: &Objective,
        recipe: &TrainRecipe,
    ) -> Result<Self> {
        recipe.check(student.shape().max_positions)?;
        if recipe.longest() != recipe.context || recipe.sentence_share > 0.0 {
            let what = "long_context and sentence_share are for pretrain: a teacher's windows have one length";
            return Err(Error::Recipe(what.into()));
        }
        match &teacher {
            None if objective.alpha > 0.0 => {
                return Err(Error::Labels(format!("alpha is {}, and there is no teacher", objective.alpha)));
            }
            Some(teacher) if teacher.vocab_size() != student.vocabulary() => {
                let what = format!("has {} entries, the student's {}", teacher.vocab_size(), student.vocabulary());
                return Err(Error::Student(format!("the teacher's vocabulary {what}; make it from this teacher")));
            }
            _ => {}
        }
        let split = windows.split(recipe.validation_share, recipe.seed)?;
        if split.validation.is_empty() {
            return Err(Error::Text("no part of it is left for validation; raise validation_share".into()));
        }
        let mut teacher = teacher;
        if let Some(teacher) = &mut teacher {
            teacher.keep(&split.validation);
        }
        let (batch, parts) = (recipe.batch, recipe.parts());
        let rng = random::stream(recipe.seed, random::BATCHES);
        Ok(Self { windows, split, teacher, batch, parts, rng, deck: vec![] })
    }

    fn predictions(&self, of: &[usize]) -> usize {
        of.iter().map(|&w| self.windows.predictions_of(w).len()).sum()
    }
}

impl Source for Text<'_> {
    fn describe(&self) -> String {
        let count = |of: &[usize]| format!("{} predictions in {} windows", self.predictions(of), of.len());
        format!("{} to train on; {} for validation", count(&self.split.train), count(&self.split.validation))
    }

    fn draw(&mut self, _step: usize) -> Result<Vec<Vec<Drawn>>> {
        let mut batch = Vec::with_capacity(self.batch);
        while batch.len() < self.batch {
            if self.deck.is_empty() {
                self.deck.clone_from(&self.split.train);
                self.deck.shuffle(&mut self.rng);
            }
            batch.extend(self.deck.pop().map(Drawn::Window));
        }
        Ok(batch.chunks(self.batch / self.parts).map(<[_]>::to_vec).collect())
    }

    fn held_out(&self) -> Vec<Drawn> {
        self.split.validation.iter().map(|&w| Drawn::Window(w)).collect()
    }

    fn label_bytes(&self) -> u64 {
        self.teacher.as_ref().map_or(0, |teacher| teacher.row_bytes())
    }

    fn window(&mut self, drawn: &Drawn, labelled: bool) -> Result<Window> {
        let Drawn::Window(index) = *drawn else {
            return Err(Error::Text("windows are drawn by number".into()));
        };
        let soft = match &mut self.teacher {
            Some(teacher) if labelled => Some(teacher.soft(index)?),
            _ => None,
        };
        Ok(Window { tokens: self.windows.tokens_of(index).to_vec(), soft })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{self, Output};
    use crate::ops::{Divergence, Form};
    use crate::resume::fields;
    use crate::soft::Soft;
    use crate::train::{Job, Progress, train};
    use crate::{metrics, testing};
    use std::path::Path;
    use store::output::Begin;

    /// Labels each prediction with its own target.
    struct Oracle<'a>(&'a Windows);

    impl Teacher for Oracle<'_> {
        fn vocab_size(&self) -> usize {
            300
        }
        fn temperature(&self) -> f64 {
            1.0
        }
        fn soft(&mut self, window: usize) -> Result<Soft> {
            Ok(Soft::Sampled { n: 1, ids: self.0.tokens_of(window)[1..].to_vec() })
        }
    }

    fn windows() -> Windows {
        Windows::new(&[(0..200).collect(), (100..290).collect()], 8, None).expect("long enough")
    }

    fn recipe() -> TrainRecipe {
        TrainRecipe { long_context: None, long_share: 0.0, sentence_share: 0.0, context: 8, ..testing::train() }
    }

    #[test]
    fn labels_stay_with_their_tokens_when_windows_are_shuffled() {
        let (windows, student) = (windows(), testing::student(1));
        let objective = Objective { alpha: 0.5, temperature: 1.0, divergence: Divergence::Forward };
        let mut oracle = Oracle(&windows);
        let mut text = Text::new(&windows, Some(&mut oracle), &student, &objective, &recipe()).expect("it all fits");
        let mut seen = vec![0; windows.windows.len()];
        let passes = 3;
        for step in 1..=passes * text.split.train.len() / 4 {
            for drawn in text.draw(step).expect("windows").concat() {
                let window = text.window(&drawn, true).expect("labels");
                assert_eq!(window.soft, Some(Soft::Sampled { n: 1, ids: window.tokens[1..].to_vec() }));
                let Drawn::Window(index) = drawn else { panic!("a number") };
                seen[index] += 1;
            }
        }
        assert!(text.split.train.iter().all(|&w| (passes - 1..=passes).contains(&seen[w])), "{seen:?}");
        assert!(text.split.validation.iter().all(|&w| seen[w] == 0));
    }

    #[test]
    fn misfits_are_refused() {
        let windows = windows();
        fn says<'a>(windows: &'a Windows, teacher: Option<&'a mut dyn Teacher>, recipe: TrainRecipe, what: &str) {
            let objective = Objective { alpha: 0.5, temperature: 1.0, divergence: Divergence::Forward };
            let student = testing::student(1);
            let error = Text::new(windows, teacher, &student, &objective, &recipe).err().expect(what).to_string();
            assert!(error.contains(what), "{error}");
        }
        struct Wide;
        impl Teacher for Wide {
            fn vocab_size(&self) -> usize {
                304
            }
            fn temperature(&self) -> f64 {
                1.0
            }
            fn soft(&mut self, _: usize) -> Result<Soft> {
                Ok(Soft::Sampled { n: 1, ids: vec![] })
            }
        }
        says(&windows, None, recipe(), "no teacher");
        says(&windows, Some(&mut Wide), recipe(), "has 304 entries, the student's 300");
        says(&windows, Some(&mut Oracle(&windows)), testing::train(), "for pretrain");
        says(
            &windows,
            Some(&mut Oracle(&windows)),
            TrainRecipe { validation_share: 0.0, ..recipe() },
            "validation_share",
        );
    }

    #[test]
    fn both_forms_train_alike_and_resume_to_the_same_bytes() {
        let ((tokenizer, _), windows) = (testing::corpus(), windows());
        let recipe = TrainRecipe { steps: 8, validate_every: 4, dropout: 0.1, ..recipe() };
        let objective = Objective { alpha: 0.5, temperature: 1.0, divergence: Divergence::Forward };
        let go = |form, folder: &Path, begin, progress: &mut dyn Progress| {
            let student = testing::student(1).in_form(form);
            let mut oracle = Oracle(&windows);
            let mut job = Job {
                student: &student,
                source: &mut Text::new(&windows, Some(&mut oracle), &student, &objective, &recipe)?,
                objective,
                recipe: &recipe,
                output: &Output::of_pretrained(checkpoint::begin(folder, begin, &[])?, student.shape(), &tokenizer)?,
                tokenizer: &tokenizer,
                identity: fields(&recipe)?,
            };
            train(&mut job, progress)
        };
        let folder = tempfile::tempdir().expect("a folder");
        let into = |name: &str| folder.path().join(name);
        let whole = |form, name| go(form, &into(name), Begin::New, &mut ()).expect("it trains").best;
        let (fused, composed) = (whole(Form::Fused, "fused"), whole(Form::Composed, "composed"));
        assert_eq!(fused.step, composed.step);
        assert!((fused.loss - composed.loss).abs() < 1e-5, "{fused:?} {composed:?}");
        assert!((fused.kl.expect("labels") - composed.kl.expect("labels")).abs() < 1e-5);

        let halves = into("halves");
        let mut stop = testing::Stop(7);
        let first = std::panic::AssertUnwindSafe(|| go(Form::Composed, &halves, Begin::New, &mut stop));
        assert!(std::panic::catch_unwind(first).is_err());
        // As if the end had come after a better model was saved and before the state was.
        let weights = |folder: &Path| folder.join(checkpoint::WEIGHTS);
        std::fs::copy(weights(&into("composed")), weights(&halves)).expect("copied");
        go(Form::Composed, &halves, Begin::Resume, &mut ()).expect("it resumes");
        for name in [checkpoint::WEIGHTS, metrics::FILE] {
            let bytes = |folder: &Path| std::fs::read(folder.join(name)).expect(name);
            assert!(bytes(&halves) == bytes(&into("composed")), "{name}");
        }
    }

    /// Wants another token than the text's everywhere, so that the soft loss and the cross-entropy pull apart.
    struct Contrary<'a>(&'a Windows);

    impl Teacher for Contrary<'_> {
        fn vocab_size(&self) -> usize {
            300
        }
        fn temperature(&self) -> f64 {
            1.0
        }
        fn soft(&mut self, window: usize) -> Result<Soft> {
            Ok(Soft::Sampled { n: 1, ids: vec![299; self.0.tokens_of(window).len() - 1] })
        }
    }

    #[derive(Default)]
    struct Validations(Vec<crate::train::Validation>);

    impl Progress for Validations {
        fn validated(&mut self, validation: &crate::train::Validation) {
            self.0.push(validation.clone());
        }
    }

    #[test]
    fn the_best_model_has_the_lowest_objective_that_is_trained() {
        let ((tokenizer, _), windows) = (testing::corpus(), windows());
        let recipe = TrainRecipe { steps: 24, validate_every: 3, learning_rate: 0.02, ..recipe() };
        let go = |alpha| {
            let objective = Objective { alpha, temperature: 1.0, divergence: Divergence::Forward };
            let folder = tempfile::tempdir().expect("a folder");
            let student = testing::student(1);
            let mut teacher = Contrary(&windows);
            let mut source = Text::new(&windows, Some(&mut teacher), &student, &objective, &recipe).expect("it fits");
            let mut job = Job {
                student: &student,
                source: &mut source,
                objective,
                recipe: &recipe,
                output: &Output::of_pretrained(testing::work(folder.path()), student.shape(), &tokenizer)
                    .expect("an output"),
                tokenizer: &tokenizer,
                identity: fields(&recipe).expect("fields"),
            };
            let mut seen = Validations::default();
            let best = train(&mut job, &mut seen).expect("it trains").best;
            (best, seen.0)
        };
        let lowest = |all: &[crate::train::Validation], of: fn(&crate::train::Validation) -> f64| {
            all.iter().min_by(|a, b| of(a).total_cmp(&of(b))).expect("some").step
        };
        for alpha in [0.0, 0.5, 1.0] {
            let (best, all) = go(alpha);
            for v in &all {
                let expected = alpha * v.kl.expect("labels") + (1.0 - alpha) * v.loss;
                assert!((v.objective - expected).abs() < 1e-9, "{v:?}");
            }
            assert_eq!(best.step, lowest(&all, |v| v.objective), "{alpha}");
            // What is not trained gets worse, and would have chosen another model.
            if alpha == 1.0 {
                assert!(lowest(&all, |v| v.loss) < best.step, "{all:?}");
            }
        }
    }
}
