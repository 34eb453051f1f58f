//! Renderings held to transformers' own, which `golden/transformers.json` records: a case without a text is one that
//! transformers refuses, one with `refused_here` has a text there and an error here.

use jinja::{Clock, DateTime};
use serde_json::{Map, Value};

#[test]
fn templates_render_as_transformers_renders_them() {
    let golden: Value = serde_json::from_str(include_str!("golden/transformers.json")).expect("JSON");
    let variables: &Map<String, Value> = golden["variables"].as_object().expect("an object");
    let clock = Clock::Fixed(DateTime::constant(2024, 7, 29, 13, 4, 5, 0));
    let cases = golden["cases"].as_array().expect("cases");
    assert!(cases.len() > 150);
    let mut wrong = Vec::new();
    for case in cases {
        let template = case["template"].as_str().expect("a template");
        let wanted = case["text"].as_str().filter(|_| case["refused_here"] != true);
        let got = jinja::render(template, variables, &clock);
        if got.as_deref().ok() != wanted {
            wrong.push(format!("{template}\n  gives  {got:?}\n  wanted {wanted:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
