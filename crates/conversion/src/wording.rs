//! Counts and lists of names in messages.

/// A number and its noun: `1 weight`, `2 weights`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The first two names of a list, with an ellipsis where the list has more.
pub fn first_names<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(2).map(AsRef::as_ref).collect();
    let more = if names.len() > shown.len() { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}
