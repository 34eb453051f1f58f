//! Rules that give each weight its scheme: the default, `--include`/`--exclude`, and recipes.

use crate::{Error, Result, mix::Mix, roles::Role, source::Weight};
use globset::{Glob, GlobMatcher};
use schemes::Scheme;
use serde::Deserialize;

/// Contents of a recipe file: a default scheme and rules, of which the last match wins. `keep` leaves a weight as it
/// is.
///
/// ```toml
/// default = "int4-g64"
///
/// [[rule]]
/// match = "model.layers.0.*"
/// scheme = "int8-row"
///
/// [[rule]]
/// match = "*.down_proj"
/// scheme = "keep"
/// ```
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    default: Option<String>,
    #[serde(default, rename = "rule")]
    rules: Vec<RecipeRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeRule {
    r#match: String,
    scheme: String,
}

/// A recipe with its patterns compiled.
#[derive(Debug, Clone, Default)]
pub struct Recipe {
    /// Name in provenance: that of the file.
    pub name: String,
    /// Scheme of block projections that no rule names; the request's when none. A request must
    /// then name this scheme.
    pub default: Option<Scheme>,
    rules: Vec<(GlobMatcher, Option<Scheme>)>,
}

impl Recipe {
    /// Parses a recipe from TOML.
    ///
    /// # Errors
    /// [`Error::Request`] that names the line, pattern or scheme.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |what: &str| Error::Request(format!("recipe {name}: {what}"));
        let file: RecipeFile = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            wrong(&format!("line {line}: {}", e.message()))
        })?;
        let parse_scheme = |scheme: &str| match Mix::from_name(scheme) {
            Some(mix) => Err(wrong(&format!(
                "{mix} is a mixture of types and no scheme of single weights: give --scheme {mix} beside the recipe, whose \
                 rules go before it"
            ))),
            None => scheme.parse().map_err(|e: schemes::Error| wrong(&e.to_string())),
        };
        let default = file.default.as_deref().map(parse_scheme).transpose()?;
        let mut rules = Vec::with_capacity(file.rules.len());
        for rule in &file.rules {
            let scheme = if rule.scheme == "keep" { None } else { Some(parse_scheme(&rule.scheme)?) };
            rules.push((glob(&rule.r#match)?, scheme));
        }
        Ok(Recipe { name: name.to_string(), default, rules })
    }

    /// Every scheme that the recipe names.
    pub fn schemes(&self) -> impl Iterator<Item = Scheme> + '_ {
        self.default.into_iter().chain(self.rules.iter().filter_map(|r| r.1))
    }
}

/// Rules that choose weights and their schemes.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    include: Vec<GlobMatcher>,
    exclude: Vec<GlobMatcher>,
    recipe: Option<Recipe>,
}

impl Rules {
    /// Compiles the patterns, which are globs over module names (`model.layers.0.mlp.down_proj`,
    /// `lm_head`).
    ///
    /// # Errors
    /// [`Error::Request`] with the pattern that is wrong.
    pub fn new(include: &[String], exclude: &[String], recipe: Option<Recipe>) -> Result<Self> {
        let compile = |patterns: &[String]| patterns.iter().map(|p| glob(p)).collect::<Result<Vec<_>>>();
        Ok(Rules { include: compile(include)?, exclude: compile(exclude)?, recipe })
    }

    /// The recipe, if there is one.
    pub fn recipe(&self) -> Option<&Recipe> {
        self.recipe.as_ref()
    }

    /// The scheme of `weight` where `default` is the request's; none when it stays as it is.
    ///
    /// `--include` gives the default, a rule of the recipe overrules both, and `--exclude` has
    /// the last word.
    pub fn scheme_for(&self, weight: &Weight, default: Scheme) -> Option<Scheme> {
        let hit = |patterns: &[GlobMatcher]| patterns.iter().any(|p| matches(p, weight));
        // A float type is for the whole model, norms and embeddings too.
        let by_default = matches!(default, Scheme::Float(_))
            || weight.is_block_projection()
            || (weight.is_matrix() && hit(&self.include));
        self.overruled(weight, by_default.then_some(default))
    }

    /// The scheme of `weight` where `chosen` is that of a mixture: the recipe's rules and `--exclude` go before it.
    pub fn overruled(&self, weight: &Weight, mut chosen: Option<Scheme>) -> Option<Scheme> {
        let hit = |patterns: &[GlobMatcher]| patterns.iter().any(|p| matches(p, weight));
        for (pattern, scheme) in self.recipe.iter().flat_map(|r| &r.rules) {
            if weight.is_matrix() && matches(pattern, weight) {
                chosen = *scheme;
            }
        }
        if hit(&self.exclude) { None } else { chosen }
    }

    /// Returns whether an `--include` or a rule of the recipe names the weight.
    pub fn names(&self, weight: &Weight) -> bool {
        let rules = self.recipe.iter().flat_map(|r| &r.rules).map(|r| &r.0);
        self.include.iter().chain(rules).any(|pattern| matches(pattern, weight))
    }

    /// Patterns that match no weight, or are to quantize and match only what can't be, are
    /// mistakes: says which. So is a recipe whose default is not the requested `scheme`.
    ///
    /// # Errors
    /// [`Error::Request`] with the first such pattern.
    pub fn check(&self, weights: &[Weight], scheme: Scheme) -> Result<()> {
        if let Some((recipe, default)) = self.recipe.as_ref().and_then(|r| Some((r, r.default?)))
            && default != scheme
        {
            return Err(Error::Request(format!(
                "recipe {}: its default is {default}, and {scheme} is asked for: drop one of the two",
                recipe.name
            )));
        }
        let rules = || self.recipe.iter().flat_map(|r| &r.rules);
        for pattern in self.include.iter().chain(&self.exclude).chain(rules().map(|r| &r.0)) {
            if !weights.iter().any(|w| matches(pattern, w)) {
                return Err(Error::Request(format!(
                    "pattern '{}' matches no weight; names look like '{}'",
                    pattern.glob(),
                    weights
                        .iter()
                        .find(|w| w.is_block_projection())
                        .map_or("model.layers.0.mlp.down_proj", Weight::module)
                )));
            }
        }
        let quantizing = rules().filter(|r| r.1.is_some()).map(|r| &r.0);
        for pattern in self.include.iter().chain(quantizing) {
            let mut hit = weights.iter().filter(|w| matches(pattern, w));
            let first = hit.clone().next();
            if let Some(first) = first.filter(|_| !hit.any(|w| w.is_matrix())) {
                let why = match first.role {
                    Role::Transposed => "it is stored [in, out], as GPT-2's Conv1D are, and schemes are for [out, in]",
                    _ => "only matrices can",
                };
                return Err(Error::Request(format!(
                    "pattern '{}' matches only what can't be quantized ({} {:?}, for one): {why}",
                    pattern.glob(),
                    first.name,
                    first.shape
                )));
            }
        }
        Ok(())
    }
}

fn matches(pattern: &GlobMatcher, weight: &Weight) -> bool {
    weight.modules().any(|module| pattern.is_match(module))
}

fn glob(pattern: &str) -> Result<GlobMatcher> {
    let glob = Glob::new(pattern).map_err(|e| Error::Request(format!("pattern '{pattern}': {}", e.kind())))?;
    Ok(glob.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemes::{FloatType, Matrix, RowOrder, Storage};
    use store::Bytes;

    fn weight(name: &str) -> Weight {
        let storage = Storage::Float(FloatType::F16, Bytes::from(vec![0u8; 64]));
        let matrix = Matrix::new(4, 8, storage, RowOrder::Natural).expect("fits");
        Weight {
            name: format!("{name}.weight"),
            shape: vec![4, 8],
            float: Some(FloatType::F16),
            values: crate::source::Values::Matrix(matrix),
            main: String::new(),
            tied: false,
            role: if name.contains("_proj") { Role::Projection } else { Role::Other },
        }
    }

    #[test]
    fn defaults_patterns_and_recipes() {
        let (q, head, norm) =
            (weight("model.layers.0.self_attn.q_proj"), weight("lm_head"), weight("model.layers.0.input_layernorm"));
        let s: Scheme = "int8-row".parse().expect("known");
        let rules = Rules::default();
        assert_eq!(rules.scheme_for(&q, s), Some(s));
        assert_eq!((rules.scheme_for(&head, s), rules.scheme_for(&norm, s)), (None, None));
        let rules = Rules::new(&["lm_head".into()], &["*.q_proj".into()], None).expect("compiles");
        assert_eq!((rules.scheme_for(&q, s), rules.scheme_for(&head, s)), (None, Some(s)));
        let tied = Weight { tied: true, ..weight("model.embed_tokens") };
        assert_eq!((rules.scheme_for(&tied, s), Rules::default().scheme_for(&tied, s)), (Some(s), None));
        let recipe = "default = \"nf4\"\n[[rule]]\nmatch = \"*.q_proj\"\nscheme = \"int8-row\"\n[[rule]]\nmatch=\"lm_head\"\nscheme=\"keep\"";
        let nf4 = Scheme::Nf4 { double_quant: false };
        let recipe = Recipe::parse("r.toml", recipe).expect("parses");
        assert_eq!(recipe.default, Some(nf4));
        let rules = Rules::new(&[], &[], Some(recipe)).expect("compiles");
        assert_eq!(rules.scheme_for(&q, nf4), Some(s));
        assert_eq!(rules.scheme_for(&weight("model.layers.1.mlp.up_proj"), nf4), Some(nf4));
        let message = rules.check(&[q, head], s).expect_err("two defaults").to_string();
        assert!(message.contains("r.toml") && message.contains("nf4") && message.contains("int8-row"), "{message}");
    }

    #[test]
    fn mistakes_are_named() {
        let rules = Rules::new(&["lm_haed".into()], &[], None).expect("compiles");
        let s: Scheme = "int8-row".parse().expect("known");
        let message = rules.check(&[weight("lm_head")], s).expect_err("no match").to_string();
        assert!(message.contains("lm_haed"), "{message}");
        let message = |text: &str| Recipe::parse("r.toml", text).expect_err("refused").to_string();
        assert!(message("[[rule]]\nmatch='x'\nscheme='int9'").contains("int9"));
        assert!(message("default = 'Q4_K_M'").contains("give --scheme q4_k_m beside the recipe"));
        let unknown = message("default = 'nf4'\nsurprise = 1");
        assert!(unknown.contains("r.toml: line 2: ") && !unknown.contains('\n'), "{unknown}");
        assert!(Rules::new(&["a[".into()], &[], None).is_err());
    }
}
