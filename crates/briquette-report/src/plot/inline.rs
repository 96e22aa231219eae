use std::fmt::Write;

use super::{
    canvas::drawn,
    drawing::{About, Align, Drawing, Ink, Key, Mark, Marker},
};

/// A drawing as an `<svg>` of a page. Its colours are classes, which the page's style sheet gives
/// for each scheme; only those of a scale of values are written out.
pub(crate) fn svg(drawing: &Drawing) -> String {
    let (width, height) = (number(drawing.width), number(drawing.height));
    let title = escape(&drawing.title);
    let mut svg = format!(
        r#"<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{title}">"#
    );
    marks(&mut svg, &drawing.marks);
    svg + "</svg>"
}

/// The sample of a line in a legend.
pub(crate) fn swatch(key: &Key) -> String {
    let mut svg = String::from(
        r#"<svg class="swatch" viewBox="0 -8 28 16" width="28" height="16" aria-hidden="true">"#,
    );
    marks(&mut svg, &key.swatch());
    svg + "</svg>"
}

/// Text as it stands in an attribute or between tags.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(drawn(c)),
        }
    }
    escaped
}

/// A tenth of a unit is finer than a pixel.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn class(ink: Ink) -> String {
    match ink {
        Ink::Text => "t".into(),
        Ink::Muted => "m".into(),
        Ink::Grid => "g".into(),
        // The palette has six.
        Ink::Category(index) => format!("s{}", index % 6),
        Ink::Ramp(_) | Ink::OnRamp(_) => String::new(),
    }
}

/// `class="…"`, or the colour itself, with what it paints.
fn paint(ink: Ink, what: &str) -> String {
    match ink {
        Ink::Ramp(_) | Ink::OnRamp(_) => {
            let color = ink.color();
            format!(r##"{what}="#{:02x}{:02x}{:02x}""##, color.0, color.1, color.2)
        }
        _ => format!(r#"class="{} {what}""#, class(ink)),
    }
}

fn marks(svg: &mut String, marks: &[Mark]) {
    for mark in marks {
        // Writing to a string cannot fail.
        let _ = one(svg, mark);
    }
}

fn one(svg: &mut String, mark: &Mark) -> std::fmt::Result {
    match mark {
        Mark::Line { points, ink, width, dash } => {
            write!(svg, r#"<polyline {} points=""#, paint(*ink, "stroke"))?;
            for (i, (x, y)) in points.iter().enumerate() {
                let space = if i > 0 { " " } else { "" };
                write!(svg, "{space}{},{}", number(*x), number(*y))?;
            }
            svg.push('"');
            if *width != 1.0 {
                write!(svg, r#" stroke-width="{}""#, number(*width))?;
            }
            if let Some((on, off)) = dash {
                write!(svg, r#" stroke-dasharray="{} {}""#, number(*on), number(*off))?;
            }
            svg.push_str("/>");
        }
        Mark::Rect { at: (x, y), size: (width, height), ink } => write!(
            svg,
            r#"<rect x="{}" y="{}" width="{}" height="{}" {}/>"#,
            number(*x),
            number(*y),
            number(*width),
            number(*height),
            paint(*ink, "fill")
        )?,
        Mark::Point { at, marker, ink } => point(svg, *at, *marker, *ink)?,
        Mark::Text { at: (x, y), align, size, ink, text, upward } => {
            let anchor = match align {
                Align::Left => "",
                Align::Middle => r#" text-anchor="middle""#,
                Align::Right => r#" text-anchor="end""#,
            };
            let (x, y) = (number(*x), number(*y));
            let place = if *upward {
                format!(r#"transform="translate({x} {y}) rotate(-90)" dy=".35em""#)
            } else {
                format!(r#"x="{x}" y="{y}" dy=".35em""#)
            };
            let (paint, text) = (paint(*ink, "fill"), escape(text));
            write!(svg, r#"<text {place} font-size="{size}"{anchor} {paint}>{text}</text>"#)?;
        }
        Mark::Group { about: About { tip, policy }, marks: inner } => {
            svg.push_str("<g");
            if let Some(policy) = policy {
                write!(svg, r#" data-policy="{}""#, escape(policy))?;
            }
            svg.push('>');
            if let Some(tip) = tip {
                write!(svg, "<title>{}</title>", escape(tip))?;
            }
            marks(svg, inner);
            svg.push_str("</g>");
        }
    }
    Ok(())
}

fn point(svg: &mut String, (x, y): (f64, f64), marker: Marker, ink: Ink) -> std::fmt::Result {
    let paint = paint(ink, "fill");
    let polygon = |corners: &[(f64, f64)]| {
        let corners =
            corners.iter().map(|(dx, dy)| format!("{},{}", number(x + dx), number(y + dy)));
        format!(r#"<polygon {paint} points="{}"/>"#, corners.collect::<Vec<_>>().join(" "))
    };
    let shape = match marker {
        Marker::Circle => {
            format!(r#"<circle {paint} cx="{}" cy="{}" r="4.2"/>"#, number(x), number(y))
        }
        Marker::Square => polygon(&[(-3.8, -3.8), (3.8, -3.8), (3.8, 3.8), (-3.8, 3.8)]),
        Marker::Triangle => polygon(&[(0.0, -5.0), (5.0, 4.2), (-5.0, 4.2)]),
        Marker::Diamond => polygon(&[(0.0, -5.4), (5.4, 0.0), (0.0, 5.4), (-5.4, 0.0)]),
    };
    svg.push_str(&shape);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_model_stays_text() {
        let mut drawing = Drawing::new(10.0, 10.0, "</svg><script>\"'");
        drawing.text((1.0, 2.25), Align::Right, 12, Ink::Text, "<b>&\u{1b}");
        let about = About { tip: Some("</title>".into()), policy: Some("\"x".into()) };
        drawing.marks.push(Mark::Group { about, marks: Vec::new() });
        assert_eq!(
            svg(&drawing),
            "<svg viewBox=\"0 0 10 10\" width=\"10\" height=\"10\" role=\"img\" \
             aria-label=\"&lt;/svg&gt;&lt;script&gt;&quot;&#39;\"><text x=\"1\" y=\"2.2\" dy=\".35em\" \
             font-size=\"12\" text-anchor=\"end\" class=\"t fill\">&lt;b&gt;&amp;\u{fffd}</text>\
             <g data-policy=\"&quot;x\"><title>&lt;/title&gt;</title></g></svg>"
        );
    }

    #[test]
    fn marks_are_told_apart_without_colour() {
        let look = |index| {
            let style = super::super::drawing::Style::Series(index);
            swatch(&Key { name: String::new(), style })
                .replace(&format!("class=\"s{}", index % 6), "")
        };
        let mut looks: Vec<String> = (0..6).map(|i| look(i * 6)).collect();
        looks.dedup();
        assert_eq!(looks.len(), 6, "lines of one colour differ by dash and marker");
    }
}
