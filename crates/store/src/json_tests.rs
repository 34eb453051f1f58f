use super::*;
use proptest::prelude::*;
use serde_json::json;

fn parsed(text: &str) -> Value {
    parse_json(text.as_bytes()).expect("Python reads it")
}

/// Values that Python 3.11's `json.loads` gives.
#[test]
fn pythons_extensions_are_read() {
    let inf = json!({"__float__": "Infinity"});
    assert_eq!(parsed("[0.0, Infinity]"), json!([0.0, inf]));
    assert_eq!(
        parsed(r#"{"a": -Infinity, "b": NaN}"#),
        json!({"a": {"__float__": "-Infinity"}, "b": {"__float__": "NaN"}})
    );
    assert_eq!(parsed("[1e400, -1E+999, 1.5e3]"), json!([inf, {"__float__": "-Infinity"}, 1500.0]));
    assert_eq!(parsed(r#"{"a": 1, "a": 2, "b": NaN}"#)["a"], 2);
    assert_eq!(parsed(r#"{"NaN": "Infinity \" -Infinity \\", "x": NaN}"#)["NaN"], "Infinity \" -Infinity \\");
    assert_eq!(
        parsed(r#"["\ud83d\ude00", "\ud83d", "\ude00x", "\ud83d\ud83d\ude00", "\\ud83d"]"#),
        json!(["\u{1f600}", "\u{fffd}", "\u{fffd}x", "\u{fffd}\u{1f600}", "\\ud83d"])
    );
    assert_eq!(parsed("123456789012345678901234567890").as_f64(), Some(1.2345678901234568e29));
}

/// Texts that Python 3.11's `json.loads` refuses.
#[test]
fn what_python_refuses_is_refused() {
    for text in [
        "",
        "nan",
        "inf",
        "+Infinity",
        "-NaN",
        "NaNs",
        "Infinit",
        "1Infinity",
        "{NaN: 1}",
        "[1,]",
        "// x\n1",
        "/* */1",
        "{'a': 1}",
        "[01]",
        "[.5]",
        "[5.]",
        "\"\\ud83\"",
        "\"\\x\"",
        "\"a\nb\"",
        "None",
        "True",
        "I",
        "N",
        "-",
        "[NaN NaN]",
        "\"\\",
    ] {
        assert!(parse_json(text.as_bytes()).is_err(), "{text:?}");
    }
    assert!(parse_json(b"\xef\xbb\xbf{}").expect_err("refused").contains("byte order mark"));
    assert!(parse_json(b"\xff\xfe{\0}\0").expect_err("refused").contains("UTF-16"));
    assert!(parse_json(b"[\"\xff\", NaN]").is_err());
    assert!(parse_json("[".repeat(100_000).as_bytes()).is_err(), "no overflow of the stack");
    assert!(parse_json(b"{\"a\": NaN,\n x}").expect_err("refused").contains("line 1"), "its own positions");
}

/// JSON with floats that are not finite: the text that Python writes and the value that is read.
fn document() -> impl Strategy<Value = (String, Value)> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|n| (n.to_string(), json!(n))),
        any::<bool>().prop_map(|b| (b.to_string(), json!(b))),
        ".*".prop_map(|s| (json!(s).to_string(), json!(s))),
        prop::sample::select(vec!["NaN", "Infinity", "-Infinity"])
            .prop_map(|s| (s.to_string(), json!({"__float__": s}))),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..4).prop_map(|items| {
            let (texts, values): (Vec<_>, Vec<_>) = items.into_iter().unzip();
            (format!("[{}]", texts.join(" , ")), Value::Array(values))
        });
        let object = prop::collection::btree_map("[a-zA-Z\"\\\\]{0,8}", inner, 0..4).prop_map(|entries| {
            let texts: Vec<_> = entries.iter().map(|(k, (t, _))| format!("{}:{t}", json!(k))).collect();
            let values = entries.into_iter().map(|(k, (_, v))| (k, v)).collect();
            (format!("{{{}}}", texts.join(",\n")), Value::Object(values))
        });
        prop_oneof![list, object]
    })
}

proptest! {
    #[test]
    fn every_document_is_read_as_written((text, value) in document()) {
        prop_assert_eq!(parse_json(text.as_bytes()), Ok(value));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_json(&bytes);
    }

    #[test]
    fn no_text_panics(text in "[\\[\\]{}:,\"\\\\udU0-9a-fNIinty.eE+ -]{0,60}") {
        let _ = parse_json(text.as_bytes());
        to_strict(&text);
    }
}
