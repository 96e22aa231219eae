//! The entry of a head that goes, among entries in no order.

pub(crate) mod head;
pub(crate) mod limits;
pub(crate) mod weakest;
