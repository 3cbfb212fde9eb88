"""Strings on which tokenizers and their re-implementations part ways (spec/families.md section 4)."""

HARD_STRINGS: tuple[str, ...] = (
    " ",
    "  leading and trailing  ",
    "tabs\tand\nnewlines\r\nand\vother\fbreaks\u0085\u2028\u2029",
    "spaces:\u00a0\u1680\u2000\u2003\u2009\u202f\u205f\u3000.",
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9",  # accents composed
    "cafe\u0301 nai\u0308ve re\u0301sume\u0301",  # and decomposed
    "\u0130stanbul \u0131\u015f\u0131k STRASSE stra\u00dfe",
    "\u4f4e\u6f6e\u5728\u516d\u70b9\u56db\u5341\u5206\u3002",  # Han
    "\u30d5\u30a7\u30ea\u30fc\u306f\u4e5d\u6642\u306b\u51fa\u307e\u3059",  # Kana and Han
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",  # Hangul, composed
    "\u1112\u1161\u11ab\u1100\u1173\u11af",  # Hangul, as jamo
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",  # Arabic
    "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",  # with vowel marks
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",  # Thai: no spaces, combining vowels
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",  # Devanagari
    "\U0001f469\u200d\U0001f52c lab",  # emoji with a joiner
    "\U0001f44b\U0001f3fd \U0001f1eb\U0001f1f7 \u2764\ufe0f 1\ufe0f\u20e3",  # skin tone, flag, variation, keycap
    "z\u0335\u0321\u0322\u0327\u0328a\u0336l\u0337g\u0338o\u0334",  # stacked combining marks
    "\ufb01ne o\ufb03ce \ufb02ow",  # ligatures
    "\uff26\uff55\uff4c\uff4c\uff57\uff49\uff44\uff54\uff48 \uff11\uff12\uff13",  # full-width
    "\u200d",
    "zero\u200bwidth\u200cjoin\u200ders\ufeff",
    "soft\u00adhyphen \u2010\u2011\u2012\u2013\u2014\u2212",
    "\u202ebidi\u202c \u2066isolate\u2069",
    "ab\u0000cd",
    "control\u0001\u0002\u0007\u001b[0m\u007f\u0080\u009f",
    "hello [MASK] x",
    "[CLS] typed [SEP] specials [PAD] [UNK]",
    "<s> </s> <pad> <unk> <mask> <|endoftext|> <|im_start|>",
    "[mask] [Mask] [ MASK ] [MASK][MASK]",
    "w" * 10_000,
    "\u6f6e" * 300,
    "don't can't I'm we'll they've it's 'tis rock'n'roll",
    "3.14159 1,000,000 06:40 2026-11-30 $9.99 50% #1 a@b.example https://example.org/a?b=c&d=e#f",
    "snake_case camelCase PascalCase kebab-case path/to/file.py C++ f(x)=x^2;",
    "...!?!?---***___~~~```",
    "\u201cquotes\u201d \u2018single\u2019 \u00abguillemets\u00bb \u300ccorner\u300d",
    "\u2200x\u2208\u211d: \u221a(x\u00b2) = |x| \u2260 \u03c0 \U0001d49c\U0001d4b7",
    "\U00020000\U0002a6d6 rare Han",
    "\ue000 private use \U000f0000",
    "\ufffd replacement \ufffe\uffff",
    "x" + "\u0301" * 50,
)
