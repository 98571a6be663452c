"""The paper of Fong and Holmes (2020), regenerated."""
