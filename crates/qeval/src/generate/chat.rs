//! A model's chat template.

use crate::{Error, Result};
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;
use serde_json::Value;

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message<'a> {
    /// `system`, `user` or `assistant`.
    pub role: &'a str,
    /// What was said.
    pub content: &'a str,
}

/// A chat template: Jinja, as transformers renders it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    model: String,
    source: String,
    bos: String,
    eos: String,
}

impl Template {
    /// The template of a model: `chat_template.jinja`, or the one in tokenizer_config.json (of
    /// several, that named default).
    ///
    /// # Errors
    /// [`Error::Model`] when there is none.
    pub fn of(model: &store::Model) -> Result<Self> {
        let name = model.path.display().to_string();
        let parsed = model.side_file("tokenizer_config.json").map(serde_json::from_slice::<Value>).transpose();
        let config = parsed.map_err(|e| Error::Model(format!("{name}: tokenizer_config.json: {e}")))?;
        let config = config.unwrap_or_default();
        let own = model.side_file("chat_template.jinja").and_then(|t| std::str::from_utf8(t).ok());
        let source = own.or_else(|| in_config(&config["chat_template"])).map(str::to_string);
        let none = || Error::Model(format!("{name}: has no chat template; leave out --chat"));
        let token = |key: &str| {
            let token = &config[key];
            token.as_str().or_else(|| token["content"].as_str()).unwrap_or_default().to_string()
        };
        Ok(Template { source: source.ok_or_else(none)?, bos: token("bos_token"), eos: token("eos_token"), model: name })
    }

    /// The text of a conversation, up to where the model is to answer.
    ///
    /// # Errors
    /// [`Error::Model`] with the template's own words.
    pub fn render(&self, messages: &[Message<'_>]) -> Result<String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |what: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, what))
        });
        let values = context! {
            messages,
            add_generation_prompt => true,
            bos_token => self.bos,
            eos_token => self.eos,
        };
        environment
            .render_str(&self.source, values)
            .map_err(|e| Error::Model(format!("{}: the chat template fails: {e}", self.model)))
    }
}

/// A template, or the one named default of several.
fn in_config(json: &Value) -> Option<&str> {
    let named = |t: &&Value| t["name"].as_str() == Some("default");
    json.as_str().or_else(|| json.as_array()?.iter().find(named)?["template"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(source: &str) -> Template {
        Template { model: "m".into(), source: source.into(), bos: "<s>".into(), eos: "</s>".into() }
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
    fn what_templates_use_of_python() {
        let source = "{{ bos_token }}{% for m in messages %}\n    {% if m.role.startswith('us') %}\n{{ m.content.strip() | \
                      trim }}|{{ m | tojson }}{{ eos_token }}\n    {% endif %}\n{% endfor %}";
        let text = template(source).render(&HELLO).expect("renders");
        assert_eq!(text, "<s>hi|{\"role\":\"user\",\"content\":\" hi \"}</s>\n");
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
        assert_eq!(
            (in_config(&several), in_config(&json!("c")), in_config(&json!(null))),
            (Some("b"), Some("c"), None)
        );
    }
}
