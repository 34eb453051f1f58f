//! Short questions, answered by greedy continuation.
//!
//! The rule (as in `corpora/README.md`): the prompt is continued greedily by at most
//! [`LIMIT`] tokens, or up to an end-of-sequence token. The continuation is lower-cased; leading
//! whitespace, quotes and punctuation are stripped, then one leading article, then the former
//! again. It is right if it starts with an accepted answer (lower-cased) that ends at a word
//! boundary. Continuing stops early once nothing that follows could change the outcome.

use crate::model::LanguageModel;
use crate::stats::{Interval, mcnemar, wilson};
use crate::{Bos, Encoder, Error, Result};
use progress::{Progress, Unit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::Path;

/// Tokens of a continuation.
pub const LIMIT: usize = 12;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Item {
    /// Name of the question.
    pub id: String,
    /// The text to continue.
    pub prompt: String,
    /// Continuations that are right.
    pub answers: Vec<String>,
}

/// Reads JSON lines of items with unique ids; empty lines are passed over.
///
/// # Errors
/// Names the file and the line.
pub fn parse(path: &Path, text: &str) -> Result<Vec<Item>> {
    let items: Vec<Item> = parse_lines(path, text, |item: &Item| {
        let bad = item.prompt.is_empty() || item.answers.is_empty() || item.answers.iter().any(|a| a.trim().is_empty());
        bad.then(|| "an item needs a prompt and at least one answer that is not empty".into())
    })?;
    Ok(items)
}

/// Reads JSON lines; `check` says what is wrong with one.
pub fn parse_lines<T: for<'a> Deserialize<'a>>(
    path: &Path,
    text: &str,
    check: impl Fn(&T) -> Option<String>,
) -> Result<Vec<T>> {
    let mut items = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let wrong = |what: String| Error::Line { path: path.into(), line: at + 1, what };
        let item: T = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
        if let Some(what) = check(&item) {
            return Err(wrong(what));
        }
        items.push(item);
    }
    if items.is_empty() {
        return Err(Error::Text(format!("{}: there are no items", path.display())));
    }
    Ok(items)
}

/// State of a continuation that may still grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Right,
    Wrong,
    /// More text may decide.
    Open,
}

/// Returns whether a finished continuation is right.
pub fn is_right(continuation: &str, answers: &[String]) -> bool {
    let text = normalized(continuation);
    answers.iter().any(|a| {
        let rest = text.strip_prefix(&a.to_lowercase());
        rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    })
}

/// The continuation as the rule reads it.
fn normalized(continuation: &str) -> String {
    let lower = continuation.to_lowercase();
    let strip = |text: &'_ str| text.trim_start_matches(|c: char| !c.is_alphanumeric()).len();
    let tail = |n: usize| &lower[lower.len() - n..];
    let text = tail(strip(&lower));
    let text = ["the ", "a ", "an "].iter().find_map(|a| text.strip_prefix(a)).unwrap_or(text);
    tail(strip(text)).to_string()
}

/// Returns whether a continuation is decided, or more text could change the outcome.
fn outcome(continuation: &str, answers: &[String]) -> Outcome {
    let text = normalized(continuation);
    // A character that is not yet complete decodes to U+FFFD.
    if text.is_empty() || continuation.ends_with('\u{fffd}') || ["the ", "an "].iter().any(|a| a.starts_with(&text)) {
        return Outcome::Open;
    }
    let mut open = false;
    for answer in answers.iter().map(|a| a.to_lowercase()) {
        match text.strip_prefix(&answer).map(|rest| rest.chars().next()) {
            Some(Some(next)) if !next.is_alphanumeric() => return Outcome::Right,
            Some(None) => open = true,
            _ => open |= answer.starts_with(&text),
        }
    }
    if open { Outcome::Open } else { Outcome::Wrong }
}

/// Asks a model every question; whether each is right.
///
/// # Errors
/// When the model or its tokenizer fails.
pub fn ask(
    model: &dyn LanguageModel,
    encoder: &Encoder,
    items: &[Item],
    rules: Rules<'_>,
    progress: &dyn Progress,
) -> Result<Vec<bool>> {
    progress.start("battery", Some(items.len() as u64), Unit::Items);
    progress.message(model.name());
    let mut right = Vec::with_capacity(items.len());
    for item in items {
        right.push(one(model, encoder, item, rules)?);
        progress.advance(1);
    }
    progress.finish();
    Ok(right)
}

/// Settings that hold for all questions.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// Rule for BOS before prompts.
    pub bos: Bos,
    /// Tokens that end a continuation.
    pub end: &'a [u32],
}

fn one(model: &dyn LanguageModel, encoder: &Encoder, item: &Item, rules: Rules<'_>) -> Result<bool> {
    let prompt = encoder.prompt(&item.prompt, rules.bos)?;
    let (mut tokens, mut text) = (Vec::new(), Ok(String::new()));
    model.greedy(&prompt, LIMIT, &mut |token| {
        if rules.end.contains(&token) {
            return ControlFlow::Break(());
        }
        tokens.push(token);
        text = encoder.decode(&tokens);
        match &text {
            Ok(text) if outcome(text, &item.answers) == Outcome::Open => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })?;
    Ok(is_right(&text?, &item.answers))
}

/// The score of a battery.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Score {
    /// Questions answered right.
    pub right: usize,
    /// Questions.
    pub total: usize,
    /// Wilson's interval of the share.
    pub ci95: Option<Interval>,
    /// Exact McNemar test against the reference; none for the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcnemar_p: Option<f64>,
}

impl Score {
    /// Counts; `reference` holds the reference's outcomes on the same questions.
    pub fn new(right: &[bool], reference: Option<&[bool]>) -> Self {
        let count = right.iter().filter(|&&r| r).count();
        let p = reference.map(|reference| {
            let only = |a: bool| right.iter().zip(reference).filter(|&(&x, &r)| x == a && r != a).count() as u64;
            mcnemar(only(true), only(false))
        });
        Score { right: count, total: right.len(), ci95: wilson(count as f64, right.len() as f64), mcnemar_p: p }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::testing::encoder;

    fn answers(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| s.to_string()).collect()
    }

    #[test]
    fn the_rule() {
        let cases = [
            (" Paris, which is", "Paris", true),
            (" Paris", "Paris", true),
            (" the city of Paris", "Paris", false),
            (" Parisian", "Paris", false),
            (" \"Paris\".", "Paris", true),
            ("\n\n- PARIS\n", "Paris", true),
            (" the Eiffel Tower", "Eiffel Tower", true),
            (" The \"Nile\"", "Nile", true),
            (" an apple", "apple", true),
            (" a: apple", "a", true),
            (" 40 degrees", "4", false),
            (" 4.", "4", true),
            (" Theban", "ban", false),
            (" New York City", "New York", true),
            (" S\u{e3}o Paulo", "s\u{e3}o paulo", true),
            ("", "Paris", false),
            (" ...", "Paris", false),
        ];
        for (text, answer, right) in cases {
            assert_eq!(is_right(text, &answers(&[answer])), right, "{text:?} {answer:?}");
        }
        assert!(is_right(" William Shakespeare", &answers(&["Shakespeare", "William Shakespeare"])));
    }

    #[test]
    fn stopping_early_never_changes_the_outcome() {
        let texts = [
            " Paris, which is",
            " the Paris of",
            " Parisian",
            " a Paris",
            " \"the Paris\" was",
            " S\u{e3}o Paulo",
            " ... ",
            " anna",
            " an",
            " The",
            " thebes",
            " 40",
            " 4 0",
            "\u{fffd}",
            " New York City",
            " new",
            " A new york",
        ];
        let lists = [&["Paris"][..], &["an"], &["4"], &["New York", "York"], &["thebes"], &["s\u{e3}o paulo"], &["a"]];
        for text in texts {
            for list in lists {
                let answers = answers(list);
                for (end, _) in text.char_indices() {
                    let so_far = outcome(&text[..end], &answers);
                    if so_far != Outcome::Open {
                        let right = so_far == Outcome::Right;
                        assert_eq!(is_right(text, &answers), right, "{:?} of {text:?}, {list:?}", &text[..end]);
                    }
                }
            }
        }
    }

    #[test]
    fn lines_with_faults_are_named() {
        let path = Path::new("b.jsonl");
        let good = r#"{"id": "a", "topic": "t", "prompt": "p", "answers": ["x"]}"#;
        assert_eq!(parse(path, &format!("\n{good}\n\n")).expect("good").len(), 1);
        let e = parse(path, &format!("{good}\n{{}}")).expect_err("no fields").to_string();
        assert!(e.starts_with("b.jsonl:2: missing field"), "{e}");
        let empty = r#"{"id": "a", "prompt": "p", "answers": [" "]}"#;
        assert!(parse(path, empty).is_err());
        assert_eq!(parse(path, "\n").expect_err("empty").to_string(), "b.jsonl: there are no items");
    }

    /// Says one text, whatever the prompt.
    struct Parrot(Vec<u32>);

    impl LanguageModel for Parrot {
        fn vocab_size(&self) -> usize {
            257
        }
        fn forward<'a>(&'a self, _: &[u32]) -> Result<Box<dyn crate::model::Forward + 'a>> {
            Err(Error::Model("only continues".into()))
        }
        fn greedy(&self, _: &[u32], limit: usize, token: &mut dyn FnMut(u32) -> ControlFlow<()>) -> Result<()> {
            let _ = self.0.iter().take(limit).try_for_each(|&t| token(t));
            Ok(())
        }
    }

    #[test]
    fn questions_are_asked() {
        let encoder = encoder(false);
        let says = |text: &str| Parrot(encoder.encode(text).expect("encodes").ids);
        let item = |answers_: &[&str]| Item { id: "i".into(), prompt: "p".into(), answers: answers(answers_) };
        let items = [item(&["yes"]), item(&["no"]), item(&["yes and no, per"])];
        let rules = Rules { bos: Bos::Auto, end: &[256] };
        let right = ask(&says(" yes and no, perhaps"), &encoder, &items, rules, &progress::Silent).expect("runs");
        // Twelve tokens (bytes here) are read: " yes and no,".
        assert_eq!(right, [true, false, false]);
        let mut ends = says(" yes");
        ends.0.push(256);
        ends.0.extend(says("terday").0);
        assert_eq!(ask(&ends, &encoder, &items, rules, &progress::Silent).expect("runs"), [true, false, false]);
    }

    #[test]
    fn scores_are_paired_with_the_reference() {
        let reference = [true, true, true, true, false, true];
        let right = [true, false, false, false, true, false];
        let score = Score::new(&right, Some(&reference));
        assert_eq!((score.right, score.total), (2, 6));
        assert!(score.mcnemar_p.is_some_and(|p| (p - 0.375).abs() < 1e-12));
        assert_eq!(Score::new(&reference, None).mcnemar_p, None);
    }
}
