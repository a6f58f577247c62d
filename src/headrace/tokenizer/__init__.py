"""Text to tokens and back: encoders, the incremental detokenizer, sandboxed chat templates.

Reading order: `vocabulary` and `pre_tokenizers` (what a model file says), `tokenizer` (encode and
decode), `detokenizer`, `stop_matcher` (the way out); `chat_template`, `template_sandbox` and
`content_guard` (the way in of a conversation).
"""
