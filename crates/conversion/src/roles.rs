//! Roles of stored tensors in the model, told by name, shape and neighbours.
//!
//! Only [`Role::Projection`] and [`Role::Expert`] are quantized by default. A tensor counts as a
//! projection when it is known to be one; whatever else a model holds stays float.

use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// Function of a tensor in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A Linear of a text block's attention or MLP, stored `[out, in]`.
    Projection,
    /// A Linear of one expert of a text block, stored `[out, in]` on its own.
    Expert,
    /// The experts of a text block's projection, all in one tensor of three dimensions.
    FusedExperts,
    /// A projection of a text block that is stored `[in, out]` (GPT-2's Conv1D).
    Transposed,
    /// Chooses or weighs experts: `mlp.gate`, `router`, `shared_expert_gate`.
    Router,
    /// Turns hidden states into logits, scores or labels: `lm_head`, `score`, `classifier`.
    Head,
    /// A table of embeddings.
    Embedding,
    /// A part of a vision or audio tower, a projector, or a block for multi-token prediction.
    Tower,
    /// A parameter of a state-space, convolution or linear-attention mixer.
    Mixer,
    /// Anything else: norms, biases, tensors of other ranks, Linears of an unknown kind.
    Other,
}

impl Role {
    /// Returns whether weights of this role are quantized unless a rule says otherwise.
    pub fn is_quantized_by_default(self) -> bool {
        matches!(self, Role::Projection | Role::Expert)
    }
}

impl Role {
    /// Plural noun for weights of this role.
    pub fn plural(self) -> String {
        match self {
            Role::Router => "routers and gates".into(),
            Role::FusedExperts => "tensors of fused experts".into(),
            Role::Other => "other matrices".into(),
            role => format!("{role}s"),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Projection => "projection",
            Role::Expert => "expert projection",
            Role::FusedExperts => "tensor of fused experts",
            Role::Transposed => "transposed projection",
            Role::Router => "router or gate",
            Role::Head => "head",
            Role::Embedding => "embedding",
            Role::Tower => "vision, audio or projector weight",
            Role::Mixer => "state-space or convolution weight",
            Role::Other => "other matrix",
        })
    }
}

/// Parts of a component's name by which a path leaves the text model.
const TOWERS: [&str; 27] = [
    "vision",
    "visual",
    "image",
    "img_",
    "video",
    "audio",
    "speech",
    "sound",
    "siglip",
    "clip_model",
    "dino",
    "sam_model",
    "whisper",
    "projector",
    "connector",
    "merger",
    "resampler",
    "perceive",
    "qformer",
    "adapter",
    "tower",
    "vqmodel",
    "codec",
    "talker",
    "2wav",
    "code_predictor",
    "nextn",
];

/// Components that leave the text model when they are the entire component.
const TOWER_COMPONENTS: [&str; 4] = ["vit", "mtp", "mlp1", "mlp_AR"];

/// Linears of attention or an MLP under names that mean nothing else.
const PROJECTIONS: [&str; 56] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "qkv_proj",
    "kv_proj",
    "qk_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj",
    "kv_b_proj",
    "kv_a_proj_with_mqa",
    "o_a_proj",
    "o_b_proj",
    "query_key_value",
    "c_attn",
    "q_attn",
    "Wqkv",
    "wqkv",
    "qkv",
    "W_pack",
    "wq_a",
    "wq_b",
    "wkv_a",
    "wkv_b",
    "wkv_a_with_mqa",
    "wo_a",
    "wo_b",
    "to_q",
    "to_k",
    "to_v",
    "to_out",
    "gate_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj",
    "up_gate_proj",
    "dense_h_to_4h",
    "dense_4h_to_h",
    "fc1",
    "fc2",
    "fc_in",
    "fc_out",
    "c_fc",
    "c_fc_0",
    "c_fc_1",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn",
    "ffn_output",
];

/// Linears of a GGUF model's shared experts.
const SHARED_GGUF: [&str; 3] = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];

/// Linears under names that mean a projection only within attention.
const IN_ATTENTION: [&str; 22] = [
    "q", "k", "v", "o", "query", "key", "value", "out_proj", "dense", "c_proj", "proj", "out", "wq", "wk", "wv", "wo",
    "Wo", "q_lin", "k_lin", "v_lin", "out_lin", "wkv",
];

/// Linears under names that mean a projection only within an MLP.
const IN_MLP: [&str; 28] = [
    "up",
    "down",
    "w1",
    "w2",
    "w3",
    "w12",
    "w13",
    "wi",
    "wi_0",
    "wi_1",
    "wo",
    "Wi",
    "Wo",
    "dense",
    "lin1",
    "lin2",
    "linear1",
    "linear2",
    "linear_1",
    "linear_2",
    "c_proj",
    "fc",
    "gate_up",
    "input_linear",
    "output_linear",
    "fc_1",
    "fc_2",
    "proj_out",
];

/// Components of an MLP's path.
const MLPS: [&str; 14] = [
    "mlp",
    "ffn",
    "ff",
    "feed_forward",
    "feedforward",
    "moe",
    "block_sparse_moe",
    "experts",
    "shared_experts",
    "shared_expert",
    "shared_mlp",
    "densereludense",
    "intermediate",
    "output",
];

/// Components under which everything belongs to a mixer that is no softmax attention.
const MIXERS: [&str; 11] = [
    "mamba",
    "ssm",
    "conv",
    "short_conv",
    "shortconv",
    "rg_lru",
    "linear_attn",
    "linear_attention",
    "time_mix",
    "indexer",
    "compressor",
];

/// Children that only a state-space, convolution or linear-attention mixer has.
const STATE: [&str; 10] =
    ["A_log", "dt_bias", "dt_proj", "x_proj", "conv1d", "conv_1d", "conv", "q_conv1d", "ssm_a", "rg_lru"];

/// Heads outside the blocks.
const HEADS: [&str; 14] = [
    "lm_head",
    "score",
    "scores",
    "classifier",
    "classification_head",
    "embed_out",
    "qa_outputs",
    "v_head",
    "value_head",
    "reward_head",
    "regression_head",
    "head",
    "cls",
    "output",
];

/// A stored tensor as far as roles go by it.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// Name, with `.weight` where it has it.
    pub name: &'a str,
    /// Logical shape, outermost first.
    pub shape: &'a [usize],
}

/// The tensors of a model, indexed by what surrounds them.
pub struct Roles<'a> {
    /// Shape of each tensor.
    shapes: HashMap<&'a str, &'a [usize]>,
    /// Names of the direct children of each path.
    children: HashMap<&'a str, HashSet<&'a str>>,
    /// Paths of stacks that begin with a convolution over pixels or samples, and whether all below
    /// the path follows it.
    convolved: HashSet<(&'a str, bool)>,
    /// Numbers of experts that config.json names.
    experts: Vec<usize>,
    /// True if `c_attn`, `c_proj` and `c_fc` are stored `[in, out]`.
    conv1d: bool,
}

impl<'a> Roles<'a> {
    /// Indexes the tensors of a model with its config.json.
    pub fn new(tensors: &'a [Stored<'a>], config: Option<&Value>) -> Self {
        let mut roles = Roles {
            shapes: tensors.iter().map(|t| (t.name, t.shape)).collect(),
            children: HashMap::new(),
            convolved: HashSet::new(),
            experts: config.map(expert_counts).unwrap_or_default(),
            conv1d: false,
        };
        for t in tensors {
            for (at, _) in t.name.match_indices('.') {
                let child = t.name[at + 1..].split('.').next().unwrap_or_default();
                roles.children.entry(&t.name[..at]).or_default().insert(child);
            }
            if t.shape.len() >= 3 && block(t.name).is_none() && !leaves_text(t.name) {
                roles.convolved.extend(convolution_parent(t.name));
            }
        }
        roles.conv1d = tensors.iter().any(|t| roles.is_transposed(t));
        roles
    }

    /// Returns whether a Linear's bias, or its shape alone, shows that its weight is `[in, out]`.
    fn is_transposed(&self, t: &Stored<'_>) -> bool {
        let (Some(module), &[rows, cols]) = (t.name.strip_suffix(".weight"), t.shape) else { return false };
        let leaf = module.rsplit('.').next().unwrap_or_default();
        if !is_conv1d_name(leaf) || block(t.name).is_none() {
            return false;
        }
        match self.shapes.get(format!("{module}.bias").as_str()) {
            Some(&[bias]) if rows != cols => *bias == cols,
            _ => leaf == "c_attn" && cols == 3 * rows,
        }
    }

    /// The role of a tensor.
    pub fn role(&self, name: &str, shape: &[usize]) -> Role {
        let module = name.strip_suffix(".weight");
        let matrix = module.is_some() && shape.len() == 2;
        let path: Vec<&str> = module.unwrap_or(name).split('.').collect();
        let leaf = path.last().copied().unwrap_or_default();
        if leaves_text(name) {
            return Role::Tower;
        }
        if is_table(leaf) {
            return Role::Embedding;
        }
        let Some((stack, tail)) = block(module.unwrap_or(name)) else {
            let head = matrix && path.iter().any(|c| HEADS.contains(c));
            return if head { Role::Head } else { Role::Other };
        };
        if self.convolved.iter().any(|(path, below)| {
            stack == *path || *below && stack.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
        }) {
            return Role::Tower;
        }
        let tail: Vec<&str> = tail.split('.').collect();
        let parent = module.unwrap_or(name).strip_suffix(leaf).and_then(|p| p.strip_suffix('.')).unwrap_or_default();
        if self.is_mixer(parent, &tail) {
            return Role::Mixer;
        }
        if self.is_router(parent, leaf, &tail, shape) {
            return Role::Router;
        }
        if shape.len() == 3 && tail.iter().any(|c| c.contains("expert") || c.contains("moe") || c.ends_with("_exps")) {
            return Role::FusedExperts;
        }
        if !matrix || !is_projection(leaf, &tail) {
            return Role::Other;
        }
        if self.conv1d && is_conv1d_name(leaf) {
            return Role::Transposed;
        }
        let numbered = tail.windows(2).any(|w| matches!(w[0], "experts" | "expert") && is_number(w[1]));
        if numbered { Role::Expert } else { Role::Projection }
    }

    fn is_mixer(&self, parent: &str, tail: &[&str]) -> bool {
        let state = |path: &str| self.children.get(path).is_some_and(|c| STATE.iter().any(|s| c.contains(s)));
        tail.iter().any(|c| is_mixer_component(c)) || state(parent)
    }

    /// Returns whether a tensor chooses experts: by its name, or because it has one output for each expert of the
    /// module that holds them.
    fn is_router(&self, parent: &str, leaf: &str, tail: &[&str], shape: &[usize]) -> bool {
        let named = |c: &&str| {
            c.contains("router")
                || c.ends_with("_gate")
                || c.starts_with("ffn_gate_inp")
                || matches!(*c, "wg" | "gating")
        };
        if leaf != "ffn_gate" && tail.iter().any(named) {
            return true;
        }
        let rows = shape.first().copied().unwrap_or_default();
        if let Some(at) = tail.iter().position(|c| *c == "gate") {
            // A dense MLP may call its projections gate, up and down.
            let up = |name: &str| self.shapes.get(format!("{parent}.{name}.weight").as_str()) == Some(&shape);
            return at + 1 < tail.len() || !(up("up") || up("up_proj"));
        }
        let experts = self.children.get(format!("{parent}.experts").as_str());
        experts.is_some_and(|c| {
            shape.len() == 2 && (c.iter().filter(|c| is_number(c)).count() == rows || self.experts.contains(&rows))
        })
    }
}

/// Returns whether a Linear of a text block is one of attention's or an MLP's.
fn is_projection(leaf: &str, tail: &[&str]) -> bool {
    let parents = &tail[..tail.len() - 1];
    let attention = parents.iter().any(|c| {
        let c = c.to_ascii_lowercase();
        (c.contains("attn") || c.contains("attention")) && !c.contains("norm")
    });
    let mlp = parents.iter().any(|c| MLPS.contains(&c.to_ascii_lowercase().as_str()));
    if attention {
        // A gate of attention's output is no projection.
        return leaf != "gate_proj" && (PROJECTIONS.contains(&leaf) || IN_ATTENTION.contains(&leaf));
    }
    PROJECTIONS.contains(&leaf) || SHARED_GGUF.contains(&leaf) || mlp && (IN_MLP.contains(&leaf) || leaf == "gate")
}

/// Returns whether a module of this name is a table of embeddings, and no Linear that projects embeddings.
fn is_table(leaf: &str) -> bool {
    let linear = ["proj", "mapping", "dense", "embed_out", "linear"].iter().any(|part| leaf.contains(part));
    leaf.contains("embed") && !linear
        || matches!(leaf, "wte" | "wpe" | "shared" | "token_embd" | "relative_attention_bias")
}

/// Names that only tables of embeddings have, at the end of a path outside the blocks.
const TABLES: [&str; 19] = [
    "embed_tokens",
    "embed_in",
    "embed_positions",
    "embed",
    "embeddings",
    "embedding",
    "word_embeddings",
    "word_embedding",
    "position_embeddings",
    "position_embedding",
    "token_type_embeddings",
    "tokens_embed",
    "positions_embed",
    "tok_embeddings",
    "wte",
    "wpe",
    "shared",
    "token_embd",
    "relative_attention_bias",
];

/// Returns whether a module is surely a table of embeddings, and not a Linear that makes embeddings.
pub fn is_known_table(module: &str) -> bool {
    TABLES.contains(&module.rsplit('.').next().unwrap_or_default())
}

/// Returns whether a component of a path names a mixer that is no softmax attention.
pub fn is_mixer_component(component: &str) -> bool {
    MIXERS.contains(&component) || component.starts_with("ssm_")
}

/// Names that GPT-2 and its kin give to Conv1D.
fn is_conv1d_name(leaf: &str) -> bool {
    matches!(leaf, "c_attn" | "q_attn" | "c_proj" | "c_fc")
}

fn is_number(component: &str) -> bool {
    !component.is_empty() && component.bytes().all(|b| b.is_ascii_digit())
}

/// Returns whether a path leads out of the text model.
pub fn leaves_text(name: &str) -> bool {
    name.split('.').any(is_tower_component)
}

/// Returns whether a component of a path names a tower, a projector or a block for multi-token prediction.
pub fn is_tower_component(component: &str) -> bool {
    TOWERS.iter().any(|t| component.contains(t)) || TOWER_COMPONENTS.contains(&component)
}

/// The stack that a block's tensor belongs to, and its path within the block: the parts before and after the first
/// number. None for tensors outside numbered blocks.
pub fn block(name: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    for component in name.split('.') {
        let end = at + component.len();
        if is_number(component) && at > 0 && end < name.len() {
            let (list, tail) = (&name[..at - 1], &name[end + 1..]);
            let stack = list.rsplit_once('.').map_or("", |(stack, _)| stack);
            return (!matches!(tail, "weight" | "bias")).then_some((stack, tail));
        }
        at = end + 1;
    }
    None
}

/// The path of the stack that a convolution outside the blocks belongs to; of one within a module of embeddings,
/// the path of the model that embeds.
fn convolution_parent(name: &str) -> Option<(&str, bool)> {
    let components: Vec<&str> = name.split('.').collect();
    let first = components.iter().position(|c| c.contains("conv") || c.contains("patch") || c.contains("stem"))?;
    let len = components[..first].iter().map(|c| c.len() + 1).sum::<usize>();
    let path = name[..len].strip_suffix('.')?;
    Some(path.strip_suffix(".embeddings").map_or((path, false), |model| (model, true)))
}

/// Every number of experts in config.json, in its sub-configurations too.
fn expert_counts(config: &Value) -> Vec<usize> {
    let Some(object) = config.as_object() else { return Vec::new() };
    let mut out = Vec::new();
    for (key, value) in object {
        match value {
            Value::Number(n) if key.contains("expert") && !key.contains("per_tok") && !key.contains("size") => {
                out.extend(n.as_u64().filter(|n| *n > 1).map(|n| n as usize));
            }
            Value::Object(_) if key.ends_with("config") => out.extend(expert_counts(value)),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
#[path = "roles_tests.rs"]
mod tests;
