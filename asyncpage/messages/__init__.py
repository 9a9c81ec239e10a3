"""Every message that actors send, a file a receiver; a verb asks, a past fact tells.

All are values: frozen, complete at birth, made of numbers, strings, bytes, tuples and int32 or float32 columns
(numpy arrays that nobody writes after sending). Per step there are five, whatever the batch size:
`Reserve`, `Granted`, `Step`, `StepDone`, `StepTokens`.

INVARIANT: a request that was accepted has exactly one `Finish` in one `Texts`; one that was not has one `Refused`.
"""

from __future__ import annotations

from asyncpage.messages.anyone import Ping, Pong
from asyncpage.messages.archive import NO_PARENT, BlockLabel, Discard, Fetch, Store, Touch
from asyncpage.messages.detokenizer import End, Expect, Started, StepTokens
from asyncpage.messages.executor import (
    AdaptableLinear,
    Handshake,
    LayerGroup,
    LearnAdapter,
    LearnGrammar,
    LearnVocabulary,
    Lesson,
    Load,
    LoadFailed,
    NewRow,
    RankLoaded,
    RunExperts,
    Shutdown,
    Step,
)
from asyncpage.messages.frontend import Accepted, Encoded, Finish, LogprobEntry, Refused, Texts
from asyncpage.messages.kv_manager import Candidate, Fetched, Released, Reserve, Rewind, Shelved, Stored, Unwatch, Watch
from asyncpage.messages.questions import (
    Answer,
    Ask,
    BlockChart,
    BlockSight,
    CacheEvent,
    CacheEvents,
    Chart,
    Follow,
    Holder,
    LookAt,
    Question,
    ResetCache,
    Why,
)
from asyncpage.messages.scheduler import (
    Admission,
    Admit,
    Drain,
    Ended,
    ExecutorGone,
    ExecutorLost,
    ExecutorReady,
    Expired,
    Granted,
    Pooled,
    StepDone,
    StepFailed,
    Stirred,
)
from asyncpage.messages.tokenizer import (
    Cancel,
    ChatPrompt,
    Encode,
    Prompt,
    RequestOptions,
    TextPrompt,
    Tokenize,
    TokenPrompt,
)
from asyncpage.messages.values import (
    EMPTY,
    EMPTY_BLOCKS,
    EMPTY_PAIRS,
    EMPTY_TRIPLES,
    FRONTEND_SHIFT,
    Adapter,
    Constraint,
    FinishReason,
    Float32,
    Int32,
    Logprobs,
    Pooling,
    Prefix,
    PromptLogprobs,
    RequestId,
    frontend_of,
)

ToTokenizer = Tokenize | Encode | Cancel
ToScheduler = (
    Admit
    | Cancel
    | Granted
    | StepDone
    | StepFailed
    | ExecutorLost
    | ExecutorReady
    | ExecutorGone
    | Ended
    | Expired
    | Drain
    | Stirred
)
ToArchive = Store | Fetch | Touch | Discard
ToKvManager = Shelved | Stored | Fetched | Reserve | Rewind | Watch | Unwatch | Ask | Follow
ToExecutor = Step | Lesson | Load | RunExperts | Shutdown
FromExecutor = StepDone | StepFailed | Handshake | RankLoaded | LoadFailed
ToDetokenizer = Expect | StepTokens
ToFrontend = Accepted | Refused | Encoded | Texts | Pong | Answer | CacheEvents

__all__ = (
    "EMPTY",
    "EMPTY_BLOCKS",
    "EMPTY_PAIRS",
    "EMPTY_TRIPLES",
    "FRONTEND_SHIFT",
    "NO_PARENT",
    "Accepted",
    "AdaptableLinear",
    "Adapter",
    "Admission",
    "Admit",
    "Answer",
    "Ask",
    "BlockChart",
    "BlockLabel",
    "BlockSight",
    "CacheEvent",
    "CacheEvents",
    "Cancel",
    "Candidate",
    "Chart",
    "ChatPrompt",
    "Constraint",
    "Discard",
    "Drain",
    "Encode",
    "Encoded",
    "End",
    "Ended",
    "ExecutorGone",
    "ExecutorLost",
    "ExecutorReady",
    "Expect",
    "Expired",
    "Fetch",
    "Fetched",
    "Finish",
    "FinishReason",
    "Float32",
    "Follow",
    "FromExecutor",
    "Granted",
    "Handshake",
    "Holder",
    "Int32",
    "LayerGroup",
    "LearnAdapter",
    "LearnGrammar",
    "LearnVocabulary",
    "Lesson",
    "Load",
    "LoadFailed",
    "LogprobEntry",
    "Logprobs",
    "LookAt",
    "NewRow",
    "Ping",
    "Pong",
    "Pooled",
    "Pooling",
    "Prefix",
    "Prompt",
    "PromptLogprobs",
    "Question",
    "RankLoaded",
    "Refused",
    "Released",
    "RequestId",
    "RequestOptions",
    "Reserve",
    "ResetCache",
    "Rewind",
    "RunExperts",
    "Shelved",
    "Shutdown",
    "Started",
    "Step",
    "StepDone",
    "StepFailed",
    "StepTokens",
    "Stirred",
    "Store",
    "Stored",
    "TextPrompt",
    "Texts",
    "ToArchive",
    "ToDetokenizer",
    "ToExecutor",
    "ToFrontend",
    "ToKvManager",
    "ToScheduler",
    "ToTokenizer",
    "TokenPrompt",
    "Tokenize",
    "Touch",
    "Unwatch",
    "Watch",
    "Why",
    "frontend_of",
)
