"""The paper's figures, tables and numbers beside ours: `python workflow/paper CONFIG`."""
