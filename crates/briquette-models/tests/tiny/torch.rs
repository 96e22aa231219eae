//! Files in the format that `torch.save` wrote before 1.6: pickles, and the bytes of all storages
//! behind them.

use safetensors::Dtype;

use super::Stored;

/// The file of these tensors, each with a storage of its own.
pub(crate) fn file<'a>(tensors: impl Iterator<Item = (&'a String, &'a Stored)>) -> Vec<u8> {
    let tensors: Vec<_> = tensors.enumerate().collect();
    let mut out = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec();
    out.extend(b"\x80\x02M\xe9\x03.");
    out.extend(b"\x80\x02}X\x0d\0\0\0little_endian\x88s.");
    out.extend(b"\x80\x02}(");
    for (key, (name, stored)) in &tensors {
        text(&mut out, name);
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut out, "storage");
        let kind = match stored.dtype {
            Dtype::F32 => "FloatStorage",
            Dtype::BF16 => "BFloat16Storage",
            dtype => panic!("{dtype:?}"),
        };
        out.extend(format!("ctorch\n{kind}\n").bytes());
        text(&mut out, &key.to_string());
        text(&mut out, "cpu");
        number(&mut out, stored.shape.iter().product());
        out.extend(b"tQK\0(");
        for side in &stored.shape {
            number(&mut out, *side);
        }
        out.extend(b"t(");
        for at in 0..stored.shape.len() {
            number(&mut out, stored.shape[at + 1..].iter().product());
        }
        out.extend(b"t\x89ccollections\nOrderedDict\n)RtR");
    }
    out.extend(b"u.\x80\x02](");
    for (key, _) in &tensors {
        text(&mut out, &key.to_string());
    }
    out.extend(b"e.");
    for (_, (_, stored)) in tensors {
        out.extend(stored.shape.iter().product::<usize>().to_le_bytes());
        out.extend(&stored.bytes);
    }
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.bytes());
}

fn number(out: &mut Vec<u8>, number: usize) {
    out.push(b'J');
    out.extend((number as u32).to_le_bytes());
}
