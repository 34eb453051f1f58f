//! layouts.
