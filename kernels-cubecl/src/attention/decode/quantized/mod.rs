mod fp8;
mod fp8_mma;
mod launch;
mod mma;
mod operands;
mod portable;

use briquette_ops::{DecodeInput, DecodeOutput, PackedNumbers, QuantizedKv, Result};
use burn::{backend::Dispatch, tensor::Tensor};

use self::{
    launch::QuantizedAttentionBackend,
    operands::{Numbers, PackedTensors, Pages, VectorTensors},
    portable::MOST_SCORES,
};
use crate::{
    attention::{
        decode::split::{self, Heads, operands::TailTensors},
        scoring::Scores,
    },
    common::check::Check,
};

/// Decode attention over quantized entries, read as they are packed: no key and no value is laid
/// out.
///
/// Where the device multiplies tiles of 16-bit numbers, pages are of 32 tokens, head_dim is 64 or
/// 128, everything has the type of the queries, and numbers are levels (KIVI) of 2 or 4 bits, those
/// of values in groups of 32 channels, or FP8, a plane takes a page at a time, or 16 tokens of the
/// tail, for up to 8 query heads of one kv head. Keys and values are laid out in the registers of
/// the instruction, two numbers at a time: levels rounded to the type of the queries, as those of a
/// cache in that type; bytes of FP8 exactly, the scale of a key multiplying its score, and that of
/// a value its rounded numbers. Either is 4 to 5 operations for two. Where one cube has all of a
/// head, it writes the output itself.
///
/// Elsewhere pages of a head are split between cubes, each of 64 units and up to 4 query heads of
/// one kv head (8 with 4 or 8 bits). Of keys a unit takes one word of a channel, 32 / bits tokens:
/// scale and query are multiplied once for all of them, and what the least number of the group adds
/// once; the product of a query with a level is what is left. Of values a unit takes one word of a
/// token, 32 / bits channels, in the same way. Of FP8 a unit takes up to 16 channels of a token in
/// one load, of a key and of a value; bytes become f32 by bit operations, exactly, and scales
/// multiply scores and weights. Maxima and sums are those of an online softmax, in f32. The tail is
/// taken in splits of its own, by a kernel for rows of full precision, and a further kernel puts
/// all splits together in a fixed order.
///
/// With `d` channels, `b` bytes per number of full precision, `n` bits, groups of `G` tokens and of
/// `C` channels, `P` tokens in pages and `t` in the tail, a kv head reads P · (2 · d · n / 8 + 2 ·
/// b · d / G + 2 · b · d / C) bytes, of FP8 P · (2 · d + 2 · b), and 2 · d · b · t of the tail.
/// Each split of a query head writes and reads 4 · d + 8 bytes, and each weight is written twice
/// and read once. Operations, for `g` query heads per kv head: 4 · d · g · (P + t), and 6 · d · P
/// to take levels out of words for every 4 query heads (8 with 4 or 8 bits), or 14 · d · P to take
/// bytes of FP8 for every 4.
///
/// A score that is NaN makes the output of its head NaN. A head that sees nothing has an output of
/// zeros.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there are no pages or no room for a
/// tail, or the device has no kernels or cannot launch so much.
pub(crate) fn quantized(input: &DecodeInput, kv: &QuantizedKv) -> Result<DecodeOutput> {
    check(input, kv)?;
    let (wanted, kv) = (input.weights, kv.clone());
    let ints = kv.offsets.dtype();
    let numbers = match kv.numbers {
        PackedNumbers::Levels { keys, values, bits } => {
            let (dtype, words) = (keys.scale.dtype(), keys.words.dtype());
            let [keys, values] = [keys, values].map(|packed| PackedTensors {
                words: packed.words.cast(words).into_dispatch(),
                scale: packed.scale.cast(dtype).into_dispatch(),
                min: packed.min.cast(dtype).into_dispatch(),
            });
            Numbers::Levels { keys, values, bits }
        }
        PackedNumbers::Fp8 { keys, values } => {
            let (dtype, words) = (keys.scale.dtype(), keys.words.dtype());
            let [keys, values] = [keys, values].map(|vectors| VectorTensors {
                words: vectors.words.cast(words).into_dispatch(),
                scale: vectors.scale.cast(dtype).into_dispatch(),
            });
            Numbers::Fp8 { keys, values }
        }
    };
    let pages = Pages {
        numbers,
        list: kv.pages.cast(ints).into_dispatch(),
        offsets: kv.offsets.into_dispatch(),
        tail_padding: kv.tail_padding.cast(ints).into_dispatch(),
        group: kv.group,
        most_pages: kv.most_pages,
        columns: kv.columns,
    };
    let tail = TailTensors {
        values: kv.tail.values.cast(kv.tail.keys.dtype()).into_dispatch(),
        keys: kv.tail.keys.into_dispatch(),
        entries: kv.tail.entries,
    };
    let (output, weights) = Dispatch::quantized_attention(
        input.queries.clone().into_dispatch(),
        pages,
        tail,
        Scores::from(input.scoring.clone()),
        wanted,
    );
    Ok(DecodeOutput {
        output: Tensor::from_dispatch(output),
        weights: wanted.then(|| Tensor::<3>::from_dispatch(weights).unsqueeze_dim(2)),
    })
}

fn check(input: &DecodeInput, kv: &QuantizedKv) -> Result<()> {
    let check = Check::new("quantized_attention", &input.queries.device())?;
    let [batch, query_heads, _, head_dim] = input.queries.dims();
    let [_, kv_heads, capacity, _] = kv.tail.keys.dims();
    let heads = Heads { batch, query_heads, kv_heads, head_dim };
    check.shape("queries", input.queries.dims(), [batch, query_heads, 1, head_dim])?;
    heads.check(&check)?;
    check_numbers(&check, &kv.numbers, kv.group, head_dim)?;
    let group = kv.group;

    let all = kv.pages.dims()[0];
    check.shape("offsets", kv.offsets.dims(), [batch * kv_heads + 1])?;
    check.shape("tail_padding", kv.tail_padding.dims(), [batch * kv_heads])?;
    let held = (1..=all).contains(&kv.most_pages);
    check.value("most_pages", kv.most_pages, held, format!("1 to {all}"))?;
    let tail = [batch, kv_heads, capacity, head_dim];
    check.shape("tail_keys", kv.tail.keys.dims(), tail)?;
    check.shape("tail_values", kv.tail.values.dims(), tail)?;
    check.value("capacity", capacity, capacity > 0, "at least 1")?;
    check.value(
        "tail",
        kv.tail.entries,
        kv.tail.entries <= capacity,
        format!("at most {capacity}"),
    )?;
    let (least, most) = (kv.most_pages * group, kv.most_pages * group + kv.tail.entries);
    let held = (least..=most).contains(&kv.columns);
    check.value("columns", kv.columns, held, format!("{least} to {most}"))?;
    check.scoring(&input.scoring, query_heads)?;
    check.no_positions(&input.scoring)?;
    check.countable("tail_keys", &kv.tail.keys.dims())?;
    if input.weights {
        split::check_columns(&check, heads, kv.columns)?;
    }
    Ok(())
}

/// Refuses words, scales and minima that do not belong to pages of `group` tokens.
fn check_numbers(
    check: &Check,
    numbers: &PackedNumbers,
    group: usize,
    head_dim: usize,
) -> Result<()> {
    let (bits, [key_words, value_words], [key_scale, value_scale]) = match numbers {
        PackedNumbers::Levels { keys, values, bits } => {
            let words = [keys.words.dims(), values.words.dims()];
            (*bits, words, [keys.scale.dims(), values.scale.dims()])
        }
        PackedNumbers::Fp8 { keys, values } => {
            let words = [keys.words.dims(), values.words.dims()];
            (8, words, [keys.scale.dims(), values.scale.dims()])
        }
    };
    let pages = key_words[0];
    check.value("bits", bits, [1, 2, 4, 8].contains(&bits), "1, 2, 4 or 8")?;
    let word = 32 / bits;
    let row = head_dim.div_ceil(word);
    check.value("pages", pages, pages > 0, "at least 1")?;
    match numbers {
        PackedNumbers::Levels { keys, values, .. } => {
            let whole = group > 0 && group.is_multiple_of(word);
            check.value("group", group, whole, format!("a multiple of {word}"))?;
            check.at_most("group", group, MOST_SCORES)?;
            check.shape("keys.words", key_words, [pages, head_dim * (group / word)])?;
            check.shape("keys.scale", key_scale, [pages, head_dim])?;
            check.shape("keys.min", keys.min.dims(), [pages, head_dim])?;
            check.shape("values.words", value_words, [pages, group * row])?;
            let groups = value_scale[1] / group;
            let even = groups > 0
                && head_dim.is_multiple_of(groups)
                && (groups == 1 || (head_dim / groups).is_multiple_of(word));
            let expected = format!("1, or a divisor of {head_dim} that leaves multiples of {word}");
            check.value("groups of a value", groups, even, expected)?;
            check.shape("values.scale", value_scale, [pages, group * groups])?;
            check.shape("values.min", values.min.dims(), [pages, group * groups])?;
        }
        PackedNumbers::Fp8 { .. } => {
            check.value("group", group, group > 0, "at least 1")?;
            check.shape("keys.words", key_words, [pages, group * row])?;
            check.shape("keys.scale", key_scale, [pages, group])?;
            check.shape("values.words", value_words, [pages, group * row])?;
            check.shape("values.scale", value_scale, [pages, group])?;
        }
    }
    check.countable("keys.words", &key_words)?;
    check.countable("keys.scale", &key_scale)?;
    check.countable("values.words", &value_words)?;
    check.countable("values.scale", &value_scale)
}
