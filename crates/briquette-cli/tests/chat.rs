//! `briquette chat` through pipes and on a terminal, on the embedded model.

mod common;

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use briquette::Prefix;
use common::{assert_says, command, file, folder, read, refused, stdout, text};
use serde_json::Value;
use tempfile::TempDir;

/// The embedded model has no chat template: this one gives it what is said.
const TEMPLATE: &str = "{% for message in messages %}{{ message.content }},{% endfor %}";
/// Nothing but what is said.
const BARE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";
/// A template that writes something else before an answer than what the answer began behind.
const REWRITING: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if add_generation_prompt %}A:{% endif %}";

struct Chat {
    child: Child,
    _dir: TempDir,
}

fn chat(args: &[&str]) -> Chat {
    chat_by(TEMPLATE, args)
}

fn chat_by(written: &str, args: &[&str]) -> Chat {
    let dir = tempfile::tempdir().unwrap();
    let template = file(dir.path(), "template.jinja", written);
    let mut command = command(["chat", "--device", "flex", "--template", text(&template)]);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Chat { child: command.spawn().unwrap(), _dir: dir }
}

/// A test that fails leaves no chat behind.
impl Drop for Chat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Chat {
    /// Stdout and stderr, when it has read these lines to their end.
    fn say(self, lines: &str) -> (String, String) {
        let output = self.hear(lines);
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn hear(mut self, lines: &str) -> Output {
        // Both ends are read at once, so that none of them is waited for.
        let mut stderr = self.child.stderr.take().unwrap();
        let heard = thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).map(|_| bytes).unwrap()
        });
        self.child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let mut stdout = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        Output { status, stdout, stderr: heard.join().unwrap() }
    }
}

/// The messages of a conversation that was kept, each with its role.
fn messages(file: &Path) -> Vec<(String, String)> {
    let prefix = Prefix::read(file).unwrap();
    let conversation: Value = serde_json::from_str(&prefix.metadata()["conversation"]).unwrap();
    let said = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
    let messages = conversation["messages"].as_array().unwrap();
    messages.iter().map(|message| (said(message, "role"), said(message, "content"))).collect()
}

/// Of each status line: tokens seen, and what stands behind.
fn statuses(stderr: &str) -> Vec<(usize, String)> {
    let lines =
        stderr.lines().filter_map(|line| line.strip_prefix('[')?.split_once(" tokens seen, "));
    lines.map(|(seen, rest)| (seen.parse().unwrap(), rest.to_owned())).collect()
}

fn long_line() -> String {
    "The gardener walked down to the river and looked at the boats. ".repeat(12)
}

#[test]
fn the_history_stays_compressed_from_turn_to_turn() {
    let lines = format!("{}\n\nIt was a dark night\nand then\n", long_line());
    let args = ["--policy", "tova", "--budget", "64", "--max-new-tokens", "8"];
    let (stdout, stderr) = chat(&args).say(&lines);
    let statuses = statuses(&stderr);
    // An empty line is no turn.
    assert_eq!(statuses.len(), 3, "{stderr}");
    assert!(stdout.lines().count() >= 3, "{stdout}");
    assert!(statuses[0].0 > 120, "{stderr}");
    for pair in statuses.windows(2) {
        // What is said, and an answer of 8 tokens, of which the last comes with the next turn.
        let grown = pair[1].0 - pair[0].0;
        assert!((9..24).contains(&grown), "{stderr}");
    }
    for (_, rest) in &statuses {
        assert!(rest.starts_with("64 kept, ") && rest.ends_with(" tokens/s]"), "{rest}");
        // Room for tokens to come is no part of what is kept.
        let share = rest.split_once(": ").unwrap().1.split_once(" % of a full cache").unwrap().0;
        assert!(share.parse::<usize>().unwrap() < 60, "{rest}");
    }
    // The same text in one turn after a reset is seen from its start.
    let (_, again) = chat(&args).say(&format!("{}\n/reset\nIt was\n", long_line()));
    let again = self::statuses(&again);
    assert_eq!(again[0].0, statuses[0].0);
    assert!(again[1].0 < 24, "{again:?}");
}

#[test]
fn turns_are_what_one_prompt_is() {
    // With everything kept, what is answered to the second line does not depend on how the first
    // came.
    let args = ["--policy", "full", "--max-new-tokens", "6"];
    let (stdout, stderr) = chat(&args).say("It was a dark night\nand the rain\n");
    let answers: Vec<&str> = stdout.lines().collect();
    let [first, second] = answers[..] else { panic!("{answers:?}") };
    let whole = format!("It was a dark night,{first},and the rain,");
    assert_eq!(answer_to(&whole, &args), format!("{second}\n"), "{stderr}");
}

/// Answer of `generate` to a text that is the whole conversation.
fn answer_to(whole: &str, args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let template = file(dir.path(), "template.jinja", BARE);
    let prompt = file(dir.path(), "prompt.txt", whole);
    let files = ["--template", text(&template), "--file", text(&prompt)];
    stdout([&["generate", "--device", "flex", "--chat"][..], &files, args].concat())
}

/// Each turn is read behind the cache of those before, though the template writes no answer as it
/// came.
#[test]
fn turns_of_a_template_that_rewrites_answers_are_what_one_prompt_is() {
    let args = ["--policy", "full", "--max-new-tokens", "6"];
    let (_dir, [file]) = folder(["talk.prefix"]);
    let questions = ["It was a dark night", "and the rain", "and the wind", "and the sea"];
    let lines = format!("{}\n/save {}\n", questions.join("\n"), text(&file));
    let (_, stderr) = chat_by(REWRITING, &args).say(&lines);
    // It is said once.
    assert_eq!(stderr.matches("writes earlier turns differently").count(), 1, "{stderr}");
    let messages = messages(&file);
    assert_eq!(messages.len(), 2 * questions.len());
    let mut whole = String::new();
    for (turn, (role, said)) in messages.iter().enumerate() {
        if role == "assistant" {
            let expected = answer_to(&format!("{whole}A:"), &args);
            assert_eq!(expected, format!("{said}\n"), "turn {turn}");
        }
        whole += &format!("{role}: {said}\n");
    }
}

/// The default does not look at the question of a turn, so the next one finds what it asks for.
#[test]
fn a_later_question_finds_what_the_first_did_not_ask_for() {
    let line = "The rain had stopped before noon, and the road was wet and nobody came. ";
    let ask = |key: &str| {
        format!(
            "What is the special magic number for {key} mentioned in the provided text? The special magic number is {key}:"
        )
    };
    let document = format!(
        "Some special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you \
         about the numbers afterwards. {}One of the special magic numbers is countess:8174205. {}One of the special \
         magic numbers is orchard:3920617. {}",
        line.repeat(8),
        line.repeat(12),
        line.repeat(20),
    );
    let lines = format!("{document}{}\n{}\n", ask("countess"), ask("orchard"));
    let args = ["--budget", "256", "--max-new-tokens", "8"];
    let (stdout, stderr) = chat_by(BARE, &args).say(&lines);
    assert!(statuses(&stderr)[0].0 > 800, "{stderr}");
    assert_eq!(stdout, "8174205\n3920617\n");
    let (stdout, _) =
        chat_by(BARE, &[&args[..], &["--policy", "snapkv:kernel=15"]].concat()).say(&lines);
    assert!(stdout.contains("8174205\n") && !stdout.contains("3920617"), "{stdout}");
}

#[test]
fn a_conversation_that_was_kept_goes_on_as_it_would_have() {
    let (_dir, [file]) = folder(["talk.prefix"]);
    let args = ["--policy", "tova", "--budget", "64", "--max-new-tokens", "8"];
    let first = format!("{}\n", long_line());
    let (whole, whole_said) = chat(&args).say(&format!("{first}It was a dark night\nand then\n"));
    let save = format!("/save {}\n", text(&file));
    let (begun, said) = chat(&args).say(&format!("{first}{save}"));
    assert_says(&said, &["goes on with it", text(&file)]);
    let kept = messages(&file);
    assert_eq!(kept[0], ("user".to_owned(), long_line().trim().to_owned()));
    assert_eq!(kept[1].0, "assistant");
    let resume = ["--resume", text(&file), "--max-new-tokens", "8"];
    // The file that was read may be written anew.
    let (next, next_said) = chat(&resume).say(&format!("It was a dark night\n{save}/policy\n"));
    assert_says(&next_said, &["tova with a budget of 64"]);
    let (last, last_said) = chat(&resume).say("and then\n");
    assert_eq!(format!("{begun}{next}{last}"), whole);
    assert_eq!(messages(&file).len(), 4);
    let kept = |said: &str| -> Vec<(usize, String)> {
        let statuses = statuses(said).into_iter();
        statuses.map(|(seen, rest)| (seen, rest.split(',').next().unwrap().to_owned())).collect()
    };
    assert_eq!([kept(&said), kept(&next_said), kept(&last_said)].concat(), kept(&whole_said));
    // After /clear nothing of it is left.
    let (_, cleared) = chat(&resume).say("/clear\nIt was\n");
    assert!(statuses(&cleared)[0].0 < 24, "{cleared}");
}

#[test]
fn a_file_that_no_conversation_goes_on_with_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = file(dir.path(), "foreign", "a letter");
    let tova = stdout(["policies", "tova"]).replace("[budget]\ntokens = 256\n", "");
    let policy = file(dir.path(), "mine.toml", tova);
    let [file, plain] = ["talk", "plain"].map(|name| dir.path().join(name));
    let args = ["--policy", "full", "--max-new-tokens", "4"];
    chat(&args).say(&format!("It was\n/save {}\n", text(&file)));
    stdout(["compress", "--prompt", "It was a dark night", "--out", text(&plain)]);
    let failed = |args: &[&str], lines: &str, code: i32| {
        let output = chat(args).hear(lines);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let error = failed(&["--resume", text(&plain)], "", 1);
    assert_says(&error, &["holds no conversation", "/save FILE"]);
    assert_says(&failed(&["--resume", text(&foreign)], "", 1), &["foreign"]);
    assert_says(&failed(&["--resume", text(&file), "--policy", "tova"], "", 2), &["--policy"]);
    let error = refused(["generate", "--prompt", "and", "--prefix", text(&file)]);
    assert_says(&error, &["chat --resume"]);
    // What is somebody else's stays, and there must be something to keep.
    let error = failed(&args, &format!("It was\n/save {}\n", text(&foreign)), 1);
    assert!(error.contains("name another file") && !error.contains("--force"), "{error}");
    assert_eq!(read(&foreign), "a letter");
    assert_says(&failed(&args, &format!("/save {}\n", text(&file)), 1), &["nothing was said yet"]);
    // A policy without a budget is told the command that gives it one.
    assert_says(&failed(&args, &format!("/policy {}\n", text(&policy)), 1), &[" 25% gives it one"]);
    assert_eq!(messages(&file).len(), 2);
}

/// A message that `compress --chat` began goes on with the first line, and its conversation with
/// others.
#[test]
fn a_chat_begins_with_a_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let template = file(dir.path(), "chat.jinja", TEMPLATE);
    let file = dir.path().join("text.prefix");
    let begun = long_line();
    let compress = ["compress", "--chat", "--prompt", &begun, "--policy", "full"];
    stdout([&compress[..], &["--template", text(&template), "--out", text(&file)]].concat());
    let args = ["--prefix", text(&file), "--max-new-tokens", "6"];
    let (answers, said) = chat(&args).say("And then\nIt was\n/clear\nAnd then\n");
    let answers: Vec<&str> = answers.lines().collect();
    let whole = format!("{begun}And then,");
    let full = ["--policy", "full", "--max-new-tokens", "6"];
    assert_eq!(answer_to(&whole, &full), format!("{}\n", answers[0]));
    let second = format!("{whole}{},It was,", answers[0]);
    assert_eq!(answer_to(&second, &full), format!("{}\n", answers[1]));
    // /clear forgets what was said, and the message begins as before.
    assert_eq!(answers[2], answers[0]);
    let statuses = statuses(&said);
    assert_eq!(statuses[2].0, statuses[0].0);
    // A conversation that began so is kept whole.
    let talk = dir.path().join("talk.prefix");
    chat(&args).say(&format!("And then\n/save {}\n", text(&talk)));
    assert_eq!(messages(&talk)[0], ("user".to_owned(), format!("{begun}And then")));
}

#[test]
fn a_model_without_a_template_is_told_so() {
    let cures = ["no chat template", "--model", "models/fetch-smollm2", "--template"];
    assert_says(&refused(["chat"]), &cures);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_an_answer_and_then_the_program() {
    // Greedy, the model repeats itself here for as long as it may.
    let mut chat =
        chat(&["--policy", "streaming-llm", "--budget", "64", "--max-new-tokens", "3900"]);
    let mut stdin = chat.child.stdin.take().unwrap();
    let mut stdout = chat.child.stdout.take().unwrap();
    let mut stderr = BufReader::new(chat.child.stderr.take().unwrap());
    let (heard, pieces) = mpsc::channel();
    let listener = thread::spawn(move || {
        let mut bytes = [0; 64];
        while stdout.read(&mut bytes).is_ok_and(|count| count > 0) {
            heard.send(()).unwrap();
        }
    });
    let mut seen = 0;
    for _ in 0..2 {
        stdin.write_all(b"It was a dark and stormy night, and\n").unwrap();
        pieces.recv().unwrap();
        common::signal(&chat.child, "-INT");
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let (now, rest) = statuses(&line).remove(0);
        // The speed is that of the tokens that came, if there was more than one.
        assert!(!rest.contains(" 0.0 tokens/s"), "{line}");
        assert!(seen < now && now < seen + 2000, "{line}");
        seen = now;
        // The rest of the answer, which was written before its status.
        while pieces.recv_timeout(Duration::from_millis(500)).is_ok() {}
    }
    // By now it waits for a line.
    common::signal(&chat.child, "-INT");
    assert_eq!(chat.child.wait().unwrap().code(), Some(130));
    listener.join().unwrap();
}

/// A chat on a terminal of its own, which `script` makes: what is typed goes to it when it asks for
/// it.
#[cfg(target_os = "linux")]
struct Terminal {
    chat: Chat,
    seen: mpsc::Receiver<Vec<u8>>,
    shown: String,
}

#[cfg(target_os = "linux")]
impl Terminal {
    fn open(args: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let template = file(dir.path(), "template.jinja", TEMPLATE);
        // The id of the chat comes first, and how it left the terminal last. `script` may end
        // before it has passed on what was written last, so the shell waits until that was read.
        // A Ctrl-C for the chat comes to the shell too, of which dash would die.
        let line = format!(
            "trap : INT; sh -c 'echo id $$; exec {} chat --device flex --template {} {args}'; code=$?; stty -a; read -r seen; exit $code",
            env!("CARGO_BIN_EXE_briquette"),
            template.display()
        );
        let mut script = std::process::Command::new("script");
        script.args(["-qefc", &line, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = script.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (heard, seen) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = stdout.read(&mut bytes) {
                if count == 0 || heard.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { chat: Chat { child, _dir: dir }, seen, shown: String::new() }
    }

    /// Waits until this is shown, and gives what was shown until then.
    fn wait(&mut self, text: &str) -> String {
        while !self.shown.contains(text) {
            let bytes = self.seen.recv_timeout(Duration::from_secs(60));
            let bytes = bytes.unwrap_or_else(|_| panic!("`{text}` is not in {:?}", self.shown));
            self.shown += &String::from_utf8_lossy(&bytes);
        }
        let end = self.shown.find(text).unwrap() + text.len();
        self.shown.drain(..end).collect()
    }

    fn write(&mut self, keys: &str) {
        self.chat.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until it asks for a line, and writes one.
    fn say(&mut self, keys: &str) {
        self.wait("> ");
        self.write(keys);
    }

    /// Asks for an answer, and waits until so many bytes of it are shown.
    fn ask(&mut self, bytes: usize) {
        self.say("It was a dark and stormy night, and\r");
        self.wait("night, and");
        self.wait_for_more(bytes);
    }

    /// Waits until so many more bytes are shown.
    fn wait_for_more(&mut self, bytes: usize) {
        while self.shown.len() < bytes {
            let more = self.seen.recv_timeout(Duration::from_secs(60));
            self.shown += &String::from_utf8_lossy(&more.unwrap());
        }
    }

    /// Waits for a status line, and gives the tokens seen and what stands behind.
    fn wait_for_status(&mut self) -> (usize, String) {
        let before = self.wait(" tokens seen, ");
        let seen = before.trim_end_matches(" tokens seen, ").rsplit('[').next().unwrap();
        (seen.parse().unwrap(), self.wait("]"))
    }

    /// Waits for its end, when the terminal is as it was before, and gives the exit code.
    fn wait_for_end(mut self) -> i32 {
        let settings = self.wait("isig icanon iexten echo ");
        assert!(settings.contains("\x1b[?2004l"), "{settings:?}");
        self.write("\r");
        self.chat.child.wait().unwrap().code().unwrap()
    }
}

/// An answer that goes on for as long as it is let.
#[cfg(target_os = "linux")]
const ENDLESS: &str = "--policy streaming-llm --budget 64 --max-new-tokens 3900";

#[cfg(target_os = "linux")]
#[test]
fn what_is_typed_while_an_answer_is_written_waits_for_its_end() {
    let (_dir, [file]) = folder(["talk.prefix"]);
    let mut terminal = Terminal::open("--policy streaming-llm --budget 64 --max-new-tokens 400");
    terminal.ask(400);
    // Typed and pasted, with and without marks, in pieces.
    let long = "and the rain fell on the roof ".repeat(300);
    terminal.write("Say wht\x7f\x7fhat\x1b[A it is\rand this:\n\x1b[200~one\rtwo");
    terminal.wait_for_more(terminal.shown.len() + 40);
    terminal.write(&format!(" {long}\r\r\x1b[201~end\r"));
    let (seen, _) = terminal.wait_for_status();
    // It stands in the line and is not sent.
    terminal.wait("> ");
    terminal.wait("Say what it is");
    terminal.wait("end");
    terminal.write("!\r");
    let (now, _) = terminal.wait_for_status();
    assert!(now > seen + 2_000, "{seen} {now}");
    terminal.say(&format!("/save {}\r", file.display()));
    terminal.wait("goes on with it");
    let said: Vec<String> = messages(&file).into_iter().map(|(_, text)| text).collect();
    assert_eq!(said.len(), 4);
    assert_eq!(said[2], format!("Say what it is\nand this:\none\ntwo {long}\n\nend!"));
    terminal.write("/quit\r");
    assert_eq!(terminal.wait_for_end(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_that_comes_too_late_asks_before_it_ends() {
    let mut terminal = Terminal::open(ENDLESS);
    terminal.ask(1_500);
    // However often while an answer is written.
    terminal.write("\x03\x03");
    let (seen, rest) = terminal.wait_for_status();
    assert!(!rest.contains(" 0.0 tokens/s"), "{rest}");
    terminal.say("\x03");
    terminal.wait("Ctrl-C once more ends");
    // The conversation is there, and what is said takes the question back.
    terminal.say("and\r");
    terminal.wait_for_more(1_500);
    terminal.write("\x03");
    assert!(terminal.wait_for_status().0 > seen);
    terminal.say("\x03");
    terminal.wait("Ctrl-C once more ends");
    terminal.wait("> ");
    // One that takes a line away is no second one.
    terminal.write("and then");
    terminal.wait("and then");
    terminal.write("\x03");
    terminal.wait("Ctrl-C once more ends");
    terminal.say("\x03");
    assert_eq!(terminal.wait_for_end(), 130);
}

#[cfg(target_os = "linux")]
#[test]
fn a_message_that_is_not_read_to_its_end_waits_to_be_sent_again() {
    let mut terminal = Terminal::open("--policy full --max-new-tokens 4");
    terminal.say("It was a dark night\r");
    let (seen, _) = terminal.wait_for_status();
    terminal.wait("> ");
    let long = long_line().repeat(18);
    terminal.write(&format!("\x1b[200~{long}\x1b[201~\r"));
    terminal.wait("reading ");
    terminal.write("\x03");
    terminal.wait("was not read to its end");
    // It is offered again, and Ctrl-C takes it away.
    terminal.wait("> ");
    terminal.wait("The gardener");
    terminal.write("\x03");
    terminal.wait("Ctrl-C once more ends");
    terminal.say("and then\r");
    let (now, _) = terminal.wait_for_status();
    assert!(now < seen + 24, "{seen} {now}");
    // One that is too long is refused, and the conversation goes on.
    terminal.say(&format!("\x1b[200~{long}{long}\x1b[201~\r"));
    terminal.wait("error: the conversation is too long");
    terminal.say("\x03");
    terminal.say("and then\r");
    assert!(terminal.wait_for_status().0 < now + 24);
    terminal.write("\x04");
    assert_eq!(terminal.wait_for_end(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_to_end_leaves_the_terminal_as_it_was() {
    for answers in [true, false] {
        let mut terminal = Terminal::open(ENDLESS);
        terminal.wait("id ");
        let id = terminal.wait("\n").trim().to_owned();
        if answers {
            terminal.ask(1_500);
        } else {
            terminal.wait("> ");
        }
        let kill = std::process::Command::new("kill").args(["-TERM", &id]).status();
        assert!(kill.unwrap().success());
        assert_eq!(terminal.wait_for_end(), 130);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_takes_a_paste_of_any_length_and_commands() {
    let args = ["--policy", "tova", "--budget", "64", "--max-new-tokens", "4"];
    // A terminal that is read by the line cuts it at 4,095 bytes.
    let long = long_line().repeat(9) + "and the end";
    assert!(long.len() > 6_000);
    let (_, piped) = chat(&args).say(&format!("{long}\n"));

    let mut terminal = Terminal::open(&args.join(" "));
    assert_says(&terminal.wait("> "), &["ember-7m", "tova with a budget of 64", "/help"]);
    // As terminals send what is pasted, here of two lines.
    let (first, rest) = long.split_at(3_000);
    terminal.write(&format!("\x1b[200~{first}\r{rest}\x1b[201~\r"));
    let (seen, _) = terminal.wait_for_status();
    let whole = statuses(&piped)[0].0;
    assert!((whole..whole + 4).contains(&seen), "{seen} tokens of {whole}");

    for (said, answer) in [
        ("/policy snapkv 25%", "a new conversation: snapkv with a budget of 25%"),
        ("/policy nothing", "policy `nothing`: there is no such method"),
        ("/nothing", "there is no /nothing"),
        ("/policy", "snapkv with a budget of 25%"),
    ] {
        terminal.write(&format!("{said}\r"));
        terminal.wait(answer);
    }
    terminal.write("/quit\r");
    assert!(terminal.chat.child.wait().unwrap().success());
}
