use std::{collections::BTreeMap, io};

use briquette_ops::{QuantizedMatrix, WeightFormat};
use burn::tensor::{DType, Device};
use burn_store::burn_pack::{Bytes, Error as PackError, Tensor};

use super::{
    families::{experts, model_type},
    file::{Gguf, Place},
    quantized::matrix,
    rope::OF_ROPE,
    value::Value,
};
use crate::{Architecture, Error, Result, checkpoint::tensors::read_at};

/// The tensors by the names of a Hugging Face checkpoint, their bytes not read yet.
pub(crate) fn tensors(file: &Gguf) -> Result<BTreeMap<String, StoredTensor>> {
    let family = file.required("general.architecture", "a text", Value::text)?;
    let model_type = model_type(file)?;
    let heads = |name: &str| {
        let key = format!("{family}.attention.{name}");
        file.optional(&key, "a number", Value::unsigned)
    };
    let query_heads = heads("head_count")?;
    let kv_heads = heads("head_count_kv")?.or(query_heads);
    let mut tensors = BTreeMap::new();
    for (name, place) in &file.tensors {
        if OF_ROPE.contains(&name.as_str()) {
            continue;
        }
        let permuted = match name.rsplit('.').nth(1) {
            Some("attn_q") if family == "llama" => query_heads,
            Some("attn_k") if family == "llama" => kv_heads,
            _ => None,
        };
        // Gemma multiplies by 1 and the weight, which files have added.
        let one_more = family.starts_with("gemma") && name.ends_with("norm.weight");
        let change = match permuted {
            Some(heads) => Change::Rows(row_order(name, place, heads)?),
            None if one_more => Change::LessOne,
            None => Change::None,
        };
        let new = checkpoint_name(model_type, name);
        let of_experts = ["_exps.weight", "_exps.bias"].iter().any(|end| name.ends_with(end));
        if !of_experts {
            tensors.insert(new, StoredTensor { place: place.clone(), change });
            continue;
        }
        for (number, place) in experts_of(name, place, experts(file, family)?)? {
            let new = new.replace(EXPERT, &number.to_string());
            tensors.insert(new, StoredTensor { place, change: Change::None });
        }
    }
    Ok(tensors)
}

/// The matrices or biases of all experts, which lie one behind the other in a tensor.
fn experts_of(name: &str, place: &Place, count: u64) -> Result<Vec<(u64, Place)>> {
    let each = place.bytes.checked_div(count).filter(|each| *each > 0);
    let (Some((experts, shape)), Some(bytes)) = (place.shape.split_first(), each) else {
        return Err(no_experts(name, place, count));
    };
    let sides = if name.ends_with(".bias") { 1 } else { 2 };
    if u64::try_from(*experts) != Ok(count) || shape.len() != sides {
        return Err(no_experts(name, place, count));
    }
    let of = |number: u64| {
        let start = place.start.saturating_add(number.saturating_mul(bytes));
        (number, Place { shape: shape.to_vec(), start, bytes, ..place.clone() })
    };
    Ok((0..count).map(of).collect())
}

fn no_experts(name: &str, place: &Place, count: u64) -> Error {
    let message = format!("its shape {:?} is not that of {count} experts", place.shape);
    Error::LoadTensor { tensor: name.into(), message }
}

/// Bytes of a matrix that are read at a time. glibc's allocator keeps buffers of the largest size
/// that was freed, up to 32 MiB, where it would give smaller ones back after each operation.
const PIECE: usize = 16 << 20;

/// A tensor of a file, and what makes it that of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    place: Place,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    None,
    /// Another order of the rows.
    Rows(Vec<usize>),
    /// Numbers less by one, in F32.
    LessOne,
}

impl StoredTensor {
    /// The tensor with its blocks expanded, when it is read.
    pub(crate) fn deferred(&self, name: String) -> Tensor {
        let Place { encoding, shape, .. } = self.place.clone();
        let less_one = matches!(self.change, Change::LessOne);
        let dtype = if less_one { DType::F32 } else { encoding.dtype() };
        let length = shape.iter().product::<usize>().saturating_mul(dtype.size());
        let stored = self.clone();
        let provider = move || {
            let bytes = stored.read().map_err(|error| PackError::IoError(error.to_string()))?;
            let plain = match less_one {
                true => {
                    let numbers = encoding.numbers(&bytes).into_iter();
                    numbers.flat_map(|number| (number - 1.0).to_le_bytes()).collect()
                }
                false => encoding.plain(bytes),
            };
            Ok(Bytes::from_bytes_vec(plain))
        };
        Tensor::deferred(name, dtype, shape, None, length, provider)
    }

    /// Bytes that it takes in the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.place.bytes
    }

    /// The format of a matrix that can stay quantized, by its header.
    pub(crate) fn format(&self) -> Option<WeightFormat> {
        self.place.encoding.format().filter(|_| self.place.shape.len() == 2)
    }

    /// Reads the matrix with its levels; `None` if it cannot stay quantized.
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::LoadTensor`] for what makes no matrix.
    pub(crate) fn quantized(&self, name: &str, device: &Device) -> Result<Option<QuantizedMatrix>> {
        let Place { path, shape, encoding, .. } = &self.place;
        let &[outputs, inputs] = shape.as_slice() else { return Ok(None) };
        let failed = |source| Error::Read { path: path.clone(), source };
        let dims = [outputs, inputs];
        if matches!(self.change, Change::Rows(_)) {
            let whole = self.read().map_err(failed);
            return matrix(name, *encoding, dims, [whole], device);
        }
        let (_, size) = encoding.block();
        let blocks = PIECE.checked_div(size).unwrap_or(0).max(1);
        let pieces = self.place.pieces(blocks.saturating_mul(size));
        let pieces = pieces.map(|place| read(&place).map_err(failed));
        matrix(name, *encoding, dims, pieces, device)
    }

    /// Its bytes, with rows in the order of the checkpoint.
    fn read(&self) -> io::Result<Vec<u8>> {
        let bytes = read(&self.place)?;
        Ok(match &self.change {
            Change::Rows(order) => reordered(&bytes, order),
            Change::None | Change::LessOne => bytes,
        })
    }
}

impl Place {
    /// The places of so many bytes each, the last of what is left.
    fn pieces(&self, bytes: usize) -> impl Iterator<Item = Self> {
        (0..self.bytes).step_by(bytes.max(1)).map(move |from| Self {
            start: self.start.saturating_add(from),
            bytes: self.bytes.saturating_sub(from).min(bytes as u64),
            ..self.clone()
        })
    }
}

impl Gguf {
    /// The numbers of a tensor of F32 and one dimension, if it is there.
    pub(crate) fn numbers(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(place) = self.tensors.get(name) else { return Ok(None) };
        if place.shape.len() != 1 || place.encoding.dtype().size() != 4 {
            return Err(self.damaged(format!("tensor `{name}` is no list of F32")));
        }
        let io = |source| Error::Read { path: place.path.clone(), source };
        let bytes = place.encoding.plain(read(place).map_err(io)?);
        let (numbers, _) = bytes.as_chunks();
        Ok(Some(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }
}

fn read(place: &Place) -> io::Result<Vec<u8>> {
    let length = usize::try_from(place.bytes).map_err(io::Error::other)?;
    read_at(&place.path, place.start, length)
}

/// The rows in the order of the checkpoint. llama.cpp rotates neighbouring channels of Llama where
/// the checkpoint rotates one of each half, and its converter brings the rows of each head into
/// that order (`permute` in `convert_hf_to_gguf.py`).
fn row_order(name: &str, place: &Place, heads: u64) -> Result<Vec<usize>> {
    let rows = place.shape.first().copied().unwrap_or(0);
    let heads = usize::try_from(heads).unwrap_or(0);
    let channels = rows.checked_div(heads).unwrap_or(0);
    if rows == 0 || !channels.is_multiple_of(2) || channels.checked_mul(heads) != Some(rows) {
        let message = format!("its {rows} rows are not those of {heads} heads");
        return Err(Error::LoadTensor { tensor: name.into(), message });
    }
    let all: Vec<usize> = (0..rows).collect();
    let halves = |head: &[usize]| {
        let (even, odd) = (head.iter().step_by(2), head.iter().skip(1).step_by(2));
        even.chain(odd).copied().collect::<Vec<usize>>()
    };
    Ok(all.chunks_exact(channels).flat_map(halves).collect())
}

fn reordered(bytes: &[u8], order: &[usize]) -> Vec<u8> {
    let row = bytes.len().checked_div(order.len()).unwrap_or(0).max(1);
    let rows: Vec<&[u8]> = bytes.chunks_exact(row).collect();
    order.iter().filter_map(|&from| rows.get(from)).copied().flatten().copied().collect()
}

/// Stands for the number of an expert.
const EXPERT: &str = "{expert}";

/// A tensor that has no other name there keeps its own, and finds no place in the model.
fn checkpoint_name(model_type: &str, name: &str) -> String {
    const OUTER: [(&str, &str); 3] = [
        ("token_embd.", "model.embed_tokens."),
        ("output_norm.", "model.norm."),
        ("output.", "lm_head."),
    ];
    const INNER: [(&str, &str); 19] = [
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_sinks", "self_attn.sinks"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("ffn_gate_inp", "mlp.gate"),
        ("ffn_gate_exps", "mlp.experts.{expert}.gate_proj"),
        ("ffn_up_exps", "mlp.experts.{expert}.up_proj"),
        ("ffn_down_exps", "mlp.experts.{expert}.down_proj"),
        ("attn_qkv", "self_attn.qkv_proj"),
        ("post_attention_norm", "attention_output_norm"),
        ("post_ffw_norm", "feedforward_output_norm"),
    ];
    let outer = OUTER
        .iter()
        .find_map(|(theirs, ours)| name.strip_prefix(theirs).map(|rest| format!("{ours}{rest}")));
    let inner = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let (_, ours) = INNER.iter().find(|(theirs, _)| *theirs == part)?;
        let ours = match (model_type, part) {
            ("phi3", "ffn_up") => "mlp.gate_up_proj",
            ("gpt_oss", "post_attention_norm") => "post_attention_layernorm",
            _ => ours,
        };
        let kind = if part == "attn_sinks" { String::new() } else { format!(".{kind}") };
        Some(format!("model.layers.{layer}.{ours}{kind}"))
    };
    let name = outer.or_else(inner).unwrap_or_else(|| name.to_owned());
    Architecture::named(model_type).map_or(name.clone(), |it| it.checkpoint_name(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_in_their_order() {
        let place = Place {
            path: "model.gguf".into(),
            shape: vec![8, 1],
            encoding: super::super::blocks::Encoding::F32,
            start: 0,
            bytes: 32,
        };
        // Two heads of four channels: the converter wrote 0 2 1 3 and 4 6 5 7.
        let order = row_order("q", &place, 2).unwrap();
        assert_eq!(reordered(&[0, 2, 1, 3, 4, 6, 5, 7], &order), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(row_order("q", &place, 3).is_err());
    }

    #[test]
    fn names_are_those_of_the_checkpoint() {
        let names = [
            "token_embd.weight",
            "blk.12.attn_q_norm.weight",
            "blk.3.ffn_down.bias",
            "blk.0.new.weight",
        ];
        assert_eq!(
            names.map(|name| checkpoint_name("llama", name)),
            [
                "model.embed_tokens.weight",
                "model.layers.12.self_attn.q_norm.weight",
                "model.layers.3.mlp.down_proj.bias",
                "blk.0.new.weight"
            ]
        );
        let names = ["blk.0.ffn_up.weight", "blk.1.ffn_norm.weight", "blk.2.ffn_down_exps.weight"];
        let of = |family: usize, model_type| checkpoint_name(model_type, names[family]);
        assert_eq!(of(0, "phi3"), "model.layers.0.mlp.gate_up_proj.weight");
        assert_eq!(of(1, "gemma2"), "model.layers.1.pre_feedforward_layernorm.weight");
        let mixtral = "model.layers.2.block_sparse_moe.experts.{expert}.w2.weight";
        assert_eq!(of(2, "mixtral"), mixtral);
    }
}
