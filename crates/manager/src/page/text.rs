//! Text in a page.

use std::fmt::{self, Display, Write as _};

/// Text in a page: nothing of it is markup.
pub(super) struct Text<T>(pub(super) T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.to_string().chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Marks that turn the direction of writing show one text as another.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => f.write_str("\u{fffd}")?,
                _ if letter.is_control() => f.write_str("\u{fffd}")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup() {
        let made = Text("<b a='\"'>&\n\u{202e}x").to_string();
        assert_eq!(made, "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}\u{fffd}x");
    }
}
