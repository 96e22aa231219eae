//! Ctrl-C, and what asks a process to end: work stops between chunks and tokens, and while files
//! are read, so that journals end with whole lines.

use std::sync::{Mutex, OnceLock, PoisonError};

use briquette::files;
use briquette_eval::Error;
use briquette_models::{Error as ModelError, Interrupt};
use signal_hook::{
    SigId,
    consts::{SIGINT, SIGTERM},
    flag::{register, register_conditional_shutdown},
    low_level::unregister,
};

/// Exit code that a shell reports for a command that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

static FLAG: OnceLock<Interrupt> = OnceLock::new();
/// Handlers that end the process at a second signal.
static ENDS: Mutex<Vec<SigId>> = Mutex::new(Vec::new());

/// The flag of this process, which Ctrl-C sets from now on; a second Ctrl-C ends the process at
/// once. Until it is asked for, the first one does: nothing would look at the flag.
pub(crate) fn flag() -> Interrupt {
    let begin = || {
        let interrupt = Interrupt::new();
        files::stop_by(interrupt.flag());
        for signal in [SIGINT, SIGTERM] {
            // Without these the process ends at once, and cut lines are seen by who reads them. The
            // first looks at what the second has set before.
            let ends = register_conditional_shutdown(signal, EXIT_CODE.into(), interrupt.flag());
            ENDS.lock().unwrap_or_else(PoisonError::into_inner).extend(ends);
            let _ = register(signal, interrupt.flag());
        }
        interrupt
    };
    FLAG.get_or_init(begin).clone()
}

/// Lets a second Ctrl-C and a second signal to end do no more than the first from now on.
pub(crate) fn ends_nothing() {
    for end in ENDS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        unregister(end);
    }
}

/// Whether it is what ended the work.
pub(crate) fn caused(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let model = cause.downcast_ref::<ModelError>();
        model.is_some_and(|error| matches!(error, ModelError::Interrupted))
            || cause.downcast_ref::<Error>().is_some_and(Error::is_interrupt)
            || cause.downcast_ref().is_some_and(files::is_stop)
    })
}
