use std::ffi::OsStr;

use briquette::methods;
use clap::{
    Arg, Command,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
};

/// The text of a policy. Any is taken here, since it may be a file or have parameters; shells
/// complete the names of methods.
#[derive(Clone, Copy)]
pub(crate) struct PolicyText;

impl TypedValueParser for PolicyText {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = methods().into_iter().map(|method| PossibleValue::new(method.name));
        Some(Box::new(names))
    }
}
