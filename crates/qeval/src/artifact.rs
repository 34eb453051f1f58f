//! Artifacts from files: opened, or with the reason why not.

use scoring::Result;
use scoring::compare::Entrant;
use scoring::load::{Compute, Loaded};
use std::path::{Path, PathBuf};

/// An artifact that was opened, or why it couldn't be.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    model: Result<Loaded>,
}

impl Opened {
    /// Opens an artifact beside its reference.
    pub fn open(path: &Path, compute: &Compute, reference: &Loaded) -> Self {
        Opened { path: path.into(), model: Loaded::open(path, compute, Some(reference)) }
    }

    /// Entry of the comparison.
    pub fn entrant(&self, reference: &Loaded) -> Entrant<'_> {
        let subject = self
            .model
            .as_ref()
            .map_err(report_line)
            .and_then(|m| m.subject(Some(reference)).map_err(|e| report_line(&e)));
        match subject {
            Ok(subject) => Entrant::Ready(subject),
            Err(error) => Entrant::Failed { artifact: self.path.display().to_string(), error },
        }
    }
}

fn report_line(error: &scoring::Error) -> String {
    report::error_line(error)
}

/// All artifacts that could not be opened, if there is no other: then nothing can be compared.
pub fn all_failed(entrants: &[Entrant<'_>]) -> Option<String> {
    let mut reasons = Vec::with_capacity(entrants.len());
    for entrant in entrants {
        match entrant {
            Entrant::Ready(_) => return None,
            Entrant::Failed { error, .. } => reasons.push(error.as_str()),
        }
    }
    match reasons[..] {
        [one] => Some(one.into()),
        _ => Some(format!("no artifact can be scored: {}", reasons.join("; "))),
    }
}
