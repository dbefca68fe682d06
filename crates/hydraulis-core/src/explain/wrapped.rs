//! Plain text: tables, and lines of limited length.

use std::iter;

/// Largest number of columns of a line.
const COLUMNS: usize = 110;
/// Columns by which continuation lines are indented.
const INDENT: usize = 4;

/// Rows of cells as lines, each column as wide as its longest cell and flush right.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        cells.join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The text with its longer lines broken at spaces and after the `+` between the replicas of a strategy. Text without
/// such a place stays whole. Continuation lines are indented.
pub(super) fn wrapped(text: &str) -> String {
    text.lines().map(wrapped_line).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str) -> String {
    let indent = line.chars().take_while(|letter| *letter == ' ').count();
    let mut lines = Vec::new();
    let (mut rest, mut indent) = (&line[indent..], indent);
    while let Some(place) = break_of(rest, COLUMNS.saturating_sub(indent)) {
        lines.push(format!("{}{}", " ".repeat(indent), rest[..place].trim_end()));
        rest = rest[place..].trim_start();
        indent = if lines.len() == 1 { indent + INDENT } else { indent };
    }
    lines.push(format!("{}{rest}", " ".repeat(indent)));
    lines.join("\n")
}

/// The byte index at which a text of more than `columns` columns is broken: the last place within `columns`, or the
/// first place beyond.
fn break_of(text: &str, columns: usize) -> Option<usize> {
    if text.chars().count() <= columns {
        return None;
    }
    let letters = || text.char_indices().zip(text.chars().skip(1).chain(iter::once(' ')));
    let places = letters().enumerate().filter_map(|(column, ((at, letter), next))| {
        let is_break = (letter != ' ' && next == ' ') || text[..at + letter.len_utf8()].ends_with(">+");
        is_break.then_some((column + 1, at + letter.len_utf8()))
    });
    let mut found = None;
    for (column, place) in places {
        if found.is_some() && column > columns {
            break;
        }
        found = Some(place);
    }
    found.filter(|&place| !text[place..].trim_start().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["scheme", "ms"], ["<tp2,full>", "7"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "    scheme  ms\n<tp2,full>   7");
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn long_lines_are_broken_at_permitted_places() {
        let words = "a ".repeat(54) + "bb";
        assert_eq!((words.len(), wrapped(&words)), (110, words.clone()));
        assert_eq!(wrapped(&format!("{words}c d")), format!("{}\n    bbc d", "a ".repeat(54).trim_end()));
        let name = "x".repeat(120);
        assert_eq!(wrapped(&format!("  {name}\n")), format!("  {name}"));
        assert_eq!(wrapped(&format!("  {name} +3 %")), format!("  {name}\n      +3 %"));
        let strategy = vec!["1x<tp4,pp2>"; 20].join("+");
        let lines = wrapped(&format!("  {strategy}  {name}  7 ms"));
        assert!(lines.lines().all(|line| line.len() <= 110 || line.trim() == name), "{lines}");
        assert_eq!(lines.split_whitespace().collect::<String>(), format!("{strategy}{name}7ms"));
        assert!(lines.lines().skip(1).all(|line| line.starts_with("      ") && !line.ends_with(' ')));
    }
}
