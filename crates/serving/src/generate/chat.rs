//! A model's chat template.

use jinja::Clock;
use scoring::{Error, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message<'a> {
    /// `system`, `user` or `assistant`.
    pub role: &'a str,
    /// The message's text.
    pub content: &'a str,
}

/// A chat template with the special tokens that it may name.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    model: String,
    source: String,
    tokens: Map<String, Value>,
}

/// Special tokens that templates see as variables, where the model has them.
const TOKENS: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Folder of further named templates.
const MORE_TEMPLATES: &str = "additional_chat_templates";

impl Template {
    /// The template that transformers takes when no tools are given: chat_template.jinja, else the one in
    /// tokenizer_config.json (of several, `default`).
    ///
    /// # Errors
    /// [`Error::Model`] when there is none, or several and none is the default.
    pub fn from_model(model: &store::Model) -> Result<Self> {
        let name = model.path.display().to_string();
        let fails = |what: String| Error::Model(format!("{name}: {what}"));
        let parse = |file: &str| match model.side_file(file) {
            Some(bytes) => serde_json::from_slice::<Value>(bytes).map_err(|e| fails(format!("{file}: {e}"))),
            None => Ok(Value::Null),
        };
        let config = parse("tokenizer_config.json")?;
        let source = match model.side_file("chat_template.jinja") {
            Some(bytes) => {
                let text = std::str::from_utf8(bytes);
                text.map_err(|_| fails("chat_template.jinja is not UTF-8 text".into()))?.to_string()
            }
            None if model.path.join(MORE_TEMPLATES).is_dir() => {
                return Err(fails(format!(
                    "{MORE_TEMPLATES} holds named chat templates, and there is no chat_template.jinja"
                )));
            }
            None => in_config(&config["chat_template"]).map_err(fails)?.to_string(),
        };
        let legacy = parse("special_tokens_map.json").unwrap_or_default();
        Ok(Template { source, tokens: special_tokens(&config, &legacy), model: name })
    }

    /// The text of a conversation, up to where the model is to answer.
    ///
    /// # Errors
    /// [`Error::Model`] with the template's own words, or the bound that it exceeds.
    pub fn render(&self, messages: &[Message<'_>]) -> Result<String> {
        self.render_at(messages, &Clock::Local)
    }

    fn render_at(&self, messages: &[Message<'_>], clock: &Clock) -> Result<String> {
        let mut variables = self.tokens.clone();
        variables.insert("messages".into(), json!(messages));
        variables.insert("tools".into(), Value::Null);
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), Value::Bool(true));
        jinja::render(&self.source, &variables, clock)
            .map_err(|e| Error::Model(format!("{}: the chat template fails: {e}", self.model)))
    }
}

/// The template of tokenizer_config.json, or the one named `default` of several.
fn in_config(json: &Value) -> Result<&str, String> {
    match json {
        Value::String(source) => Ok(source),
        Value::Array(all) => {
            let default = all.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str());
            let names: Vec<&str> = all.iter().filter_map(|t| t["name"].as_str()).collect();
            default.ok_or_else(|| format!("has chat templates named {}, and none named default", names.join(", ")))
        }
        _ => Err("has no chat template; leave out --chat".into()),
    }
}

/// The special tokens that are named: in tokenizer_config.json, in special_tokens_map.json, or by the tokenizer's class.
fn special_tokens(config: &Value, legacy: &Value) -> Map<String, Value> {
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    let defaults: &[(&str, &str)] = match class.strip_suffix("Fast").unwrap_or(class) {
        "LlamaTokenizer" | "CodeLlamaTokenizer" => {
            &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")]
        }
        "GPT2Tokenizer" => {
            &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")]
        }
        "Qwen2Tokenizer" => {
            &[("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")]
        }
        "GemmaTokenizer" => &[
            ("bos_token", "<bos>"),
            ("eos_token", "<eos>"),
            ("unk_token", "<unk>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ],
        _ => &[],
    };
    let mut out = Map::new();
    for name in TOKENS {
        // A null in the configuration takes a default away.
        let stated = [config, legacy].into_iter().find_map(|json| json.get(name));
        let text = match stated {
            Some(token) => token.as_str().or_else(|| token["content"].as_str()),
            None => defaults.iter().find(|(token, _)| *token == name).map(|(_, text)| *text),
        };
        if let Some(text) = text {
            out.insert(name.into(), text.into());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Template {
        let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null});
        Template { model: "m".into(), source: source.into(), tokens: special_tokens(&config, &Value::Null) }
    }

    const HELLO: [Message<'static>; 1] = [Message { role: "user", content: " hi " }];

    #[test]
    fn a_template_of_chat_markup() {
        let source = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ \
                      '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' \
                      + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
                      '<|im_start|>assistant\n' }}{% endif %}";
        let text = template(source).render(&HELLO).expect("renders");
        let expected =
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n hi <|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn variables_are_those_of_transformers() {
        let source = "{{ bos_token }}{{ messages[0] | tojson }}{{ eos_token }}{{ pad_token is defined }}{{ tools is none \
                      }}{{ documents is none }}{{ strftime_now('%d %b %Y') }}";
        let clock = Clock::Fixed(jinja::DateTime::constant(2024, 7, 26, 0, 0, 0, 0));
        let text = template(source).render_at(&HELLO, &clock).expect("renders");
        assert_eq!(text, "<s>{\"role\": \"user\", \"content\": \" hi \"}</s>FalseTrueTrue26 Jul 2024");
    }

    #[test]
    fn a_template_may_refuse() {
        let e = template("{{ raise_exception('no system role') }}").render(&HELLO).expect_err("refused").to_string();
        assert!(e.contains("no system role") && e.lines().count() == 1, "{e}");
        assert!(template("{% for").render(&HELLO).is_err());
    }

    #[test]
    fn of_several_templates_the_default() {
        let several = json!([{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]);
        assert_eq!((in_config(&several), in_config(&json!("c"))), (Ok("b"), Ok("c")));
        assert!(in_config(&json!([{"name": "rag", "template": "a"}])).expect_err("no default").contains("rag"));
        assert!(in_config(&json!(null)).expect_err("none").contains("--chat"));
    }

    #[test]
    fn special_tokens_by_class_unless_the_configuration_says_otherwise() {
        let config = json!({"tokenizer_class": "LlamaTokenizerFast", "bos_token": null});
        let tokens = special_tokens(&config, &json!({"pad_token": "<pad>"}));
        assert_eq!(Value::Object(tokens), json!({"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}));
    }
}
