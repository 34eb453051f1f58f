//! Chat templates: Jinja as transformers renders it.
//!
//! Templates come from strangers. A rendering is bounded in steps, in bytes that it ever allocates, in depth of calls
//! and of values, and in the nesting of its source; each bound ends it with an [`Error`]. That takes an interpreter of
//! its own: minijinja's fuel counts instructions and not the memory that one of them takes (`'x' * 10**9`, `s ~ s` in a
//! loop), and its values print as Rust's (`true`, `none`, `["a"]`) where a template sees Python's.
//!
//! Reference: jinja2 3.1's `ImmutableSandboxedEnvironment` with `trim_blocks`, `lstrip_blocks`, loop controls and
//! transformers' `{% generation %}`, `tojson`, `raise_exception` and `strftime_now`.

mod args;
mod ast;
mod budget;
mod clock;
mod error;
mod expressions;
mod filters;
mod interpreter;
mod json;
mod lexer;
mod ops;
mod parser;
mod python_methods;
mod sequences;
mod statements;
mod tests;
mod text;
mod value;

pub use clock::Clock;
pub use error::{Error, Result};
pub use jiff::civil::DateTime;

use interpreter::Interpreter;
use serde_json::{Map, Value as Json};
use std::collections::HashMap;
use std::rc::Rc;

/// Bytes of a template at most.
const MAX_SOURCE: usize = 4 << 20;
/// Stack of a rendering: the deepest one takes a fraction of it, and what isn't touched takes no memory.
const STACK: usize = 256 << 20;

/// Renders a template with `variables`.
///
/// # Errors
/// A malformed template, an operation that Python or jinja2 refuses, `raise_exception`, or a bound.
pub fn render(source: &str, variables: &Map<String, Json>, clock: &Clock) -> Result<String> {
    if source.len() > MAX_SOURCE {
        return Err(Error::limit(format!("the template has {} bytes, {MAX_SOURCE} at most are read", source.len())));
    }
    let work = || {
        let body = statements::parse(source)?;
        let values = variables.iter().map(|(name, json)| Ok((Rc::from(name.as_str()), value::Value::from_json(json)?)));
        Interpreter::new(values.collect::<Result<HashMap<_, _>>>()?, clock).render(&body)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| Error::limit(format!("no thread to render in: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(Error::new("the renderer stopped on an internal error")))
    })
}
