#[derive(Clone, Debug)]
pub(super) struct Depths(pub(super) Vec<u32>);

/// A single number counts depths, a list names them.
pub(super) fn depths(text: &str) -> Result<Depths, String> {
    let number = |text: &str| {
        text.trim().parse::<u32>().map_err(|_| format!("`{text}` is not a whole number"))
    };
    if !text.contains(',') {
        return match number(text)? {
            1 => Ok(Depths(vec![50])),
            count @ 2..=101 => {
                Ok(Depths((0..count).map(|i| (100 * i + (count - 1) / 2) / (count - 1)).collect()))
            }
            count => Err(format!("{count} depths: between 1 and 101 can be told apart")),
        };
    }
    let list = text.split(',').filter(|part| !part.trim().is_empty());
    let depths = list.map(number).collect::<Result<Vec<_>, _>>()?;
    match depths.iter().find(|depth| **depth > 100) {
        Some(depth) => Err(format!("{depth} is above 100 percent")),
        None => Ok(Depths(depths)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_a_count_or_a_list() {
        let read = |text| depths(text).unwrap().0;
        assert_eq!(read("1"), [50]);
        assert_eq!(read("2"), [0, 100]);
        assert_eq!(read("4"), [0, 33, 67, 100]);
        assert_eq!(read("5"), [0, 25, 50, 75, 100]);
        assert_eq!(read("0,10, 90"), [0, 10, 90]);
        assert_eq!(read("30,"), [30]);
        assert_eq!(read("101").len(), 101);
        for text in ["0", "102", "x", "0,101", "-1"] {
            assert!(depths(text).is_err(), "{text}");
        }
    }
}
