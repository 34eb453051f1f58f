//! Templates that would take all memory, all time or all of the stack end with an error.

use jinja::{Clock, Error};
use proptest::prelude::*;
use serde_json::Map;
use std::time::{Duration, Instant};

/// Far above what a bound takes, for slow and busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

fn rendered(template: &str) -> Result<String, Error> {
    let start = Instant::now();
    let out = jinja::render(template, &Map::new(), &Clock::Local);
    let shown: String = template.chars().take(80).collect();
    assert!(start.elapsed() < PATIENCE, "{:?} for {shown}", start.elapsed());
    out
}

fn refused(template: &str) {
    let out = rendered(template);
    let shown: String = template.chars().take(80).collect();
    assert!(out.is_err(), "{shown} gives {} bytes", out.map_or(0, |text| text.len()));
}

#[test]
fn loops_and_calls_without_end() {
    refused("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
    refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    refused("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}");
    refused("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}");
    refused("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}");
    refused("{% macro m() %}{{ m(*varargs, **kwargs) }}{% endmacro %}{{ m(1, a=1) }}");
    let doubling: String = (0..40)
        .map(|i| format!("{{% macro m{i}() %}}{{{{ m{0}() }}}}{{{{ m{0}() }}}}{{% endmacro %}}", i + 1))
        .collect();
    refused(&(doubling + "{% macro m40() %}x{% endmacro %}{{ m0() }}"));
}

#[test]
fn operations_that_take_all_memory() {
    for huge in [
        "'x' * 10**9",
        "('x' * 10**6) * 10**6",
        "[1] * 10**9",
        "(1, 2) * 10**9",
        "range(10**9)|list",
        "'x'.center(10**9)",
        "'x'.ljust(10**12)",
        "'7'.zfill(10**11)",
        "'%999999999d' % 1",
        "'%.999999999f' % 1.5",
        "'{:>999999999}'.format(1)",
        "('{0}' * 10000).format('x' * 100000)",
        "('%(a)s' * 10000) % {'a': 'x' * 100000}",
        "(['x' * 100000] * 10000)|join",
        "('a' * 10000).replace('a', 'a' * 10000).replace('a', 'a' * 10000)",
        "('a' * 100000)|replace('', 'a' * 100000)",
        "range(10)|batch(10**12, 0)|list",
        "range(10)|slice(10**12)|list",
        "('\t' * 1000000).expandtabs(1000)",
        "('\n' * 100000)|indent('x' * 100000, blank=true)",
        "10 ** 10 ** 10",
    ] {
        refused(&format!("{{{{ {huge} }}}}"));
    }
}

#[test]
fn values_that_double() {
    for (start, next) in [
        ("'x'", "ns.s + ns.s"),
        ("'x'", "ns.s ~ ns.s"),
        ("'\\\\'", "[ns.s]|string"),
        ("'\"\\\\'", "ns.s|tojson"),
        ("[1]", "ns.s + ns.s"),
        ("[1]", "[ns.s, ns.s]"),
        ("{}", "{'a': ns.s, 'b': ns.s}"),
        ("()", "(ns.s,)"),
    ] {
        let set = format!("{{% set ns = namespace(s={start}) %}}{{% for i in range(200) %}}{{% set ns.s = {next} %}}");
        refused(&format!("{set}{{% endfor %}}{{{{ ns.s }}}}"));
    }
}

#[test]
fn slow_operations_in_a_loop() {
    for slow in [
        "s.strip(t)",
        "s|trim(t)",
        "s.upper()",
        "s.swapcase()",
        "s|title",
        "t in s",
        "s.find('aaab')",
        "s == t",
        "s is lower",
        "{t: 1}",
        "d[t]",
        "d.get(t)",
        "t in d",
        "dict(d, **{t: 1})",
        "[s, t]|sort",
        "[s, t]|unique|list",
        "s|wordcount",
        "s.split('b')",
        "s[99999]",
        "s[1:]",
        "s|length",
        "s|int",
        "s|float",
        "s.isalpha()",
        "s|tojson",
        "s|e",
        "s.splitlines()",
        "s.startswith(t)",
        "[{'a': s}, {'a': t}]|groupby('a')|list",
    ] {
        let setup = "{% set s = 'a' * 100000 %}{% set t = 'b' * 99999 ~ 'a' %}{% set d = {s: 1} %}";
        let loops = "{% for i in range(100000) %}{% for j in range(100) %}";
        refused(&format!("{setup}{loops}{{% set q = {slow} %}}{{% endfor %}}{{% endfor %}}"));
    }
}

#[test]
fn sources_that_nest() {
    for (open, close) in
        [("(", ")"), ("[", "]"), ("{1:", "}"), ("not ", ""), ("- ", ""), ("1 if 0 else ", ""), ("x(", ")")]
    {
        let template = format!("{{{{ {}1{} }}}}", open.repeat(100_000), close.repeat(100_000));
        let _ = rendered(&template);
    }
    for (open, close) in [
        ("{% if 1 %}", "{% endif %}"),
        ("{% for i in [1] %}", "{% endfor %}"),
        ("{% macro m() %}", "{% endmacro %}"),
        ("{% call m() %}", "{% endcall %}"),
        ("{% set x %}", "{% endset %}"),
    ] {
        refused(&(open.repeat(20_000) + &close.repeat(20_000)));
    }
    for (start, link) in
        [("x", ".b"), ("x", "()"), ("1", "+1"), ("1", " and 1"), ("1", " < 2"), ("'x'", "|upper"), ("1", "**1")]
    {
        let _ = rendered(&format!("{{{{ {start}{} }}}}", link.repeat(50_000)));
    }
    refused(&"{#".repeat(100_000));
    refused(&"{% raw %}".repeat(100_000));
    refused(&"{{".repeat(100_000));
}

proptest! {
    #[test]
    fn any_soup_of_tokens_is_rendered_or_refused(
        tokens in prop::collection::vec(prop::sample::select(vec![
            "{{", "}}", "{%", "%}", "{#", "#}", "-", " ", "if", "else", "endif", "for", "in", "endfor", "set", "macro",
            "endmacro", "a", "b", ".", ",", "(", ")", "[", "]", "{", "}", ":", "|", "upper", "map", "is", "not", "1",
            "2.5", "'x'", "\"", "\\", "\n", "~", "+", "*", "**", "//", "%", "==", "=", "loop", "namespace", "raw",
            "endraw", "call", "endcall", "é", "recursive", "tojson", "format",
        ]), 0..60)
    ) {
        for template in [tokens.concat(), tokens.join(" "), format!("{{{{ {} }}}}", tokens.join(" "))] {
            if let Err(e) = rendered(&template) {
                prop_assert!(!e.to_string().contains("internal error"), "{template}: {e}");
            }
        }
    }
}
