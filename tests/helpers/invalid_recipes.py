"""Mistakes that users make in a recipe, and what the error message must say. Each changes one thing in a right recipe.

`tests/launch/test_mistakes.py` tries them in its own process. `benchmarks/mistakes.py` tries them on the command line
and measures the time until the message comes.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


RIGHT = {
    "model_name_or_path": "./model",
    "dataset_name": "data.jsonl",
    "reward_funcs": ["exact_answer"],
    "output_dir": "out",
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 1,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
}
TASK = """
from datasets import Dataset, DatasetDict


def prepare(script_args, training_args, model_args, *, rows=12):
    return DatasetDict(train=Dataset.from_dict({"prompt": ["1+1="] * rows, "answer": ["2"] * rows}))
"""
REWARDS = """
def even(completions, **kwargs):
    return [float(len(text) % 2 == 0) for text in completions]


def _helper():
    pass


def odd(completion, answer):
    return float(len(completion) % 2)
"""


def mixture(*files: Any, path: str = "json", **keys: Any) -> dict[str, Any]:
    """Return the keys of a recipe whose data is TRL's mixture of these files."""
    return {"dataset_name": ..., "datasets": [{"path": path, "data_files": f, **keys} for f in files or (None,)]}


BELIEF = {"advantage_baseline": "belief", "scale_rewards": "prior"}


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Args:
        name (`str`): what the mistake is.
        says (`tuple[str, ...]`): parts of the error message: the value, what is allowed or similar, and the fix.
        keys (`dict[str, Any]`): keys of the recipe that differ from `RIGHT`; `...` removes a key.
        options (`tuple[str, ...]`): options on the command line.
        recipe (`str`): the recipe that the command line names.
        text (`str`, *optional*): the whole YAML, in place of `keys`.
        by (`str`): what refuses the mistake before a model is loaded, besides `check`: "run" refuses it before the
            launch; "script", the launched script, refuses it; "": only `check` does.
        status (`int`): exit status of `check`. It is 0 if another machine may have what this machine lacks.
    """

    name: str
    says: tuple[str, ...]
    keys: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    recipe: str = "my_run.yaml"
    text: str | None = None
    by: str = "run"
    status: int = 1

    def write(self, folder: Path) -> None:
        """Write the recipe to `folder`/my_run.yaml."""
        keys = {name: value for name, value in {**RIGHT, **self.keys}.items() if value is not ...}
        folder.joinpath("my_run.yaml").write_text(yaml.safe_dump(keys) if self.text is None else self.text)


# fmt: off
MISTAKES = (
    Mistake("a mistyped key", ("unknown key lerning_rate", "Did you mean learning_rate"), {"lerning_rate": 1e-5}),
    Mistake("keys of older releases", ("unknown key torch_dtype. Use dtype instead.",
            "unknown key max_prompt_length. TRL no longer cuts prompts"),
            {"torch_dtype": "bfloat16", "max_prompt_length": 512}),
    Mistake("an option of older releases", ("--evaluation_strategy. Use eval_strategy instead.",),
            options=("--evaluation_strategy", "steps")),
    Mistake("a launch option in the recipe",
            ("unknown key num_processes. Give it to the command: trl-grpo-plus run NAME|FILE --num_processes N.",),
            {"num_processes": 4}),
    Mistake("an unknown preset", ("preset='dappo' is not one of 'grpo', 'dapo', ", "Did you mean dapo"),
            {"preset": "dappo"}),
    Mistake("a mistyped option", ("--max_stps", "--max_steps"), options=("--max_stps", "5")),
    Mistake("not YAML", ("my_run.yaml is not YAML",), text="a: b: c"),
    Mistake("a list instead of keys", ("my_run.yaml must hold `key: value` lines.",), text="- a\n- b"),
    Mistake("an empty file", ("my_run.yaml must hold `key: value` lines.",), text=""),
    Mistake("an unknown choice", ("zero_variance_groups='resampel'", "'keep', 'drop', 'skip', 'resample'",
            "Did you mean resample?"), {"zero_variance_groups": "resampel"}),
    Mistake("an unknown loss", ("loss_type='grop'", "Did you mean grpo"), {"loss_type": "grop"}),
    Mistake("an unknown mode of vLLM", ("vllm_mode='collocate'", "'colocate', 'server'", "Did you mean colocate?"),
            {"use_vllm": True, "vllm_mode": "collocate"}),
    Mistake("an unknown schedule", ("lr_scheduler_type='linaer'", "'cosine'", "Did you mean linear?"),
            {"lr_scheduler_type": "linaer"}),
    Mistake("a text instead of a number", ("learning_rate='fast' must be a number.",), {"learning_rate": "fast"}),
    Mistake("a fraction instead of a count", ("max_steps=100.0 must be an integer. Write 100.",),
            {"max_steps": 100.0}),
    Mistake("a time instead of a count", ("max_steps='1:30' must be an integer.",),
            text=yaml.safe_dump({**RIGHT, "max_steps": None}).replace("max_steps: null", "max_steps: 1:30")),
    Mistake("neither true nor false", ("bf16='maybe' must be true or false.",), {"bf16": "maybe"}),
    Mistake("a list of texts instead of numbers", ("reward_weights=['a lot'] must be a list",),
            {"reward_weights": ["a lot"]}),
    Mistake("an unquoted no instead of a text", ("report_to=False", "Without quotes YAML reads"),
            {"report_to": False}),
    Mistake("a key without a value", ("beta has no value. Write one, or remove the line.",), {"beta": None}),
    Mistake("a null where a value is needed", ("num_generations: null is not allowed. Give a value",),
            {"num_generations": None}),
    Mistake("an unknown tracker", ("report_to: 'wandbb' is not one of", "Did you mean wandb"),
            {"report_to": "wandbb"}),
    Mistake("numbers out of bounds", ("max_completion_length=0 must be an integer and >= 1.",
            "top_p=1.5 must be a finite number and >= 0 and <= 1."), {"max_completion_length": 0, "top_p": 1.5}),
    Mistake("generation_kwargs as a list", ("generation_kwargs=[1] must be a mapping",), {"generation_kwargs": [1]}),
    Mistake("a text instead of a mapping", ("chat_template_kwargs='nope' must be a mapping",),
            {"chat_template_kwargs": "nope"}),
    Mistake("a reference that nothing follows", ("sync_ref_model=True with beta=0: without a KL term",),
            {"sync_ref_model": True}),
    Mistake("a reference of an adapter", ("sync_ref_model=True with use_peft=True", "Leave sync_ref_model out"),
            {"sync_ref_model": True, "beta": 0.1, "use_peft": True}),
    Mistake("a module that the model lacks", ("lora_modules_to_save: the model has no module 'nope', so this has",),
            {"use_peft": True, "lora_modules_to_save": ["nope"]}, by=""),
    Mistake("an adapter without a part", ("lora_alpha=0 must be above 0: ", "(now 16)."),
            {"use_peft": True, "lora_alpha": 0}),
    Mistake("the best checkpoint by no metric", ("save_strategy='best' needs a metric", "Set metric_for_best_model"),
            {"save_strategy": "best"}),
    Mistake("arguments of another schedule",
            ("lr_scheduler_type='linear' with lr_scheduler_kwargs={'min_lr': 0.1} makes no schedule: ",
             "unexpected keyword argument 'min_lr'. Correct lr_scheduler_kwargs, or set another lr_scheduler_type."),
            {"lr_scheduler_type": "linear", "lr_scheduler_kwargs": {"min_lr": 0.1}}),
    Mistake("a schedule without its arguments", ("lr_scheduler_type='cosine_with_min_lr' makes no schedule: ",),
            {"lr_scheduler_type": "cosine_with_min_lr"}),
    Mistake("fsdp of one process", ("fsdp needs several processes, and this run has one.",), {"fsdp": True}),
    Mistake("an unknown word of fsdp", ("fsdp: 'fullshard' is not one of full_shard, ", "Did you mean full_shard"),
            {"fsdp": "fullshard auto_wrap"}, options=("--num_processes", "2")),
    Mistake("persistent workers without workers",
            ("dataloader_persistent_workers=True with dataloader_num_workers=0: there are no workers.",),
            {"dataloader_persistent_workers": True}),
    Mistake("an unknown attention", ("attn_implementation='flash_attn' is not one of eager, ",
            "Did you mean flash_attention_"), {"attn_implementation": "flash_attn"}),
    Mistake("arguments of the optimizer that are no pairs",
            ("optim_args='rank:8' must be pairs of key=value", "'rank:8' is no such pair."), {"optim_args": "rank:8"}),
    Mistake("an unknown backend", ("torch_compile_backend='inducter' is not one of", "Did you mean inductor?"),
            {"torch_compile_backend": "inducter"}),
    Mistake("an unknown dtype", ("model_init_kwargs has dtype='bf16', not one of auto, bfloat16, float16, float32.",),
            {"model_init_kwargs": {"dtype": "bf16"}}),
    Mistake("more numbers out of bounds", ("adam_beta2=1.0 must be a finite number and >= 0 and < 1.",
            "delta=0 must be a finite number and > 0.", "logging_steps=-1 must be a finite number and > 0.",
            "top_k=-1 turns top-k off in vLLM alone. Set top_k: 0"),
            {"adam_beta2": 1.0, "delta": 0, "logging_steps": -1, "top_k": -1}),
    Mistake("an infinite interval", ("logging_steps=inf must be a finite number.",), {"logging_steps": float("inf")}),
    Mistake("not a number", ("entropy_coef=nan must be a finite number.",), {"entropy_coef": float("nan")}),
    Mistake("rows that the first process would send", ("accelerator_config has dispatch_batches=True.",
            "Leave dispatch_batches out."), {"accelerator_config": {"dispatch_batches": True}}),
    Mistake("batches that are split among processes",
            ("split_batches=True with 2 processes.", "8 attempts instead of 16. Leave split_batches out."),
            {"accelerator_config": {"split_batches": True}}, options=("--num_processes", "2")),
    Mistake("a mistyped setting of generation",
            ("generation_kwargs has 'top_pp', which is no setting of transformers' GenerationConfig.",
             "Did you mean top_p"), {"generation_kwargs": {"top_pp": 0.9}}),
    Mistake("no micro-batches in a step", ("gradient_accumulation_steps=0 must be an integer and >= 1.",),
            {"gradient_accumulation_steps": 0}),
    Mistake("max_steps of 0", ("max_steps=0 must be a positive number, or -1",), {"max_steps": 0}),
    Mistake("no steps", ("num_train_epochs=0 must be above 0",), {"max_steps": -1, "num_train_epochs": 0}),
    Mistake("a repeated key", ("my_run.yaml is not YAML: the key beta appears twice, in lines 1 and 3.",),
            text="beta: 0.1\nmax_steps: 1\nbeta: 0.2\n"),
    Mistake("a package that is not installed", ("report_to: mlflow", "not installed", "pip install mlflow"),
            {"report_to": "mlflow"}, status=0),
    Mistake("an optimizer that is not installed",
            ("optim: schedule_free_adamw", "not installed", "pip install schedulefree"),
            {"optim": "schedule_free_adamw"}, status=0),
    Mistake("an attention that is not installed",
            ("attn_implementation: flash_attention_2", "not installed", "pip install flash-attn"),
            {"attn_implementation": "flash_attention_2"}, status=0),
    Mistake("a tracker without a name", ("report_to: None is not one of", "none"), {"report_to": None}),
    Mistake("no name of a folder", ("output_dir='' is blank. Name a folder; it need not exist.",), {"output_dir": ""}),
    Mistake("a folder of blanks", ("output_dir='  ' is blank. Name a folder",), options=("--output_dir", "  ")),
    Mistake("variables of the shell in paths",
            ("output_dir: $HOME/run holds $HOME, which is not expanded. Write the path.",
             "dataset_name: ${DATA}/rows.jsonl holds ${DATA}, which", "model_name_or_path: $MODEL holds $MODEL,"),
            {"output_dir": "$HOME/run", "dataset_name": "${DATA}/rows.jsonl", "model_name_or_path": "$MODEL"}),
    Mistake("a file instead of a folder", ("output_dir: data.jsonl is a file.",), {"output_dir": "data.jsonl"}),
    Mistake("a folder below a file", ("output_dir: data.jsonl/runs/first cannot be made: ", "/data.jsonl is a file."),
            {"output_dir": "data.jsonl/runs/first"}),
    Mistake("a link to a folder that is gone",
            ("output_dir: link cannot be made: ", "/link is a link to ", "mkdir -p /"), {"output_dir": "link"}),
    Mistake("an output_dir that is the model's own folder",
            ("output_dir: ./model/ holds the model that the run starts from", "Choose another folder."),
            {"output_dir": "./model/"}),
    Mistake("a model in the folder that the run moves away",
            ("earlier/checkpoint-10 belongs to the earlier run in output_dir (earlier)", "Choose another output_dir."),
            {"output_dir": "earlier", "model_name_or_path": "earlier/checkpoint-10"}),
    Mistake("an environment variable without a value", ("must map names of environment variables to values.",),
            {"env": {"A": None}}),
    Mistake("two sources of data", ("datasets does not go with dataset_name. Remove one.",),
            {"datasets": [{"path": "json", "data_files": "data.jsonl"}]}),
    Mistake("an invalid mixture", ("datafiles",),
            {"datasets": [{"path": "json", "datafiles": "data.jsonl"}], "dataset_name": ...}),
    Mistake("a name instead of a mixture",
            ("datasets='data.jsonl' must be a list of mappings, such as [{path: json, data_files: FILE}].",),
            {"datasets": "data.jsonl", "dataset_name": ...}),
    Mistake("a mixture with a number for a file", ("has data_files=3, which must be a text or a list",), mixture(3)),
    Mistake("a mixture without a path", ("has an entry without path",),
            {"datasets": [{"data_files": "data.jsonl"}], "dataset_name": ...}),
    Mistake("a temperature of 0", ("temperature=0 must be a finite number and > 0",), {"temperature": 0}),
    Mistake("an unknown reward", ("there is no reward named 'exact_answr'", "Did you mean exact_answer"),
            {"reward_funcs": ["exact_answr"]}),
    Mistake("an unknown argument of a reward", ("'cosine_length' has no argument 'curect'",
            "Did you mean correct"),
            {"reward_funcs": [{"name": "cosine_length", "args": {"curect": "exact_answer"}}]}),
    Mistake("an unknown key of a reward", ("unknown key 'wieght'. Did you mean weight",),
            {"reward_funcs": [{"name": "exact_answer", "wieght": 2}]}),
    Mistake("a reward cut short on the command line",
            ("reward_funcs: '{name: exact_answer' is not {name: ..., weight: ...} in YAML or JSON.",),
            options=("--reward_funcs", "{name: exact_answer")),
    Mistake("a path to a missing reward",
            ("trl_grpo_plus.rewards.exact_answer has no function 'exact_answe'. Did you mean exact_answer?",),
            {"reward_funcs": ["trl_grpo_plus.rewards.exact_answer.exact_answe"]}),
    Mistake("a missing file of a reward", ("reward_funcs: there is no file rewards.py.",),
            {"reward_funcs": ["rewards.py:mine"]}),
    Mistake("a reward's file without a function",
            ("my_rewards.py is a file. Name a function in it: my_rewards.py:even or my_rewards.py:odd.",),
            {"reward_funcs": ["my_rewards.py"]}),
    Mistake("a reward's file without a function, in a folder",
            ("./my_rewards.py is a file. Name a function in it: ./my_rewards.py:even or ",),
            {"reward_funcs": ["./my_rewards.py"]}),
    Mistake("a reward with another name for completions", ("reward 'odd' needs the column 'completion'",
            "Did you mean completions"), {"reward_funcs": ["my_rewards.py:odd"]}),
    Mistake("no rewards", ("reward_funcs is empty: name at least one",), {"reward_funcs": []}),
    Mistake("a missing column", ("needs the column 'solution', the data has prompt, answer",
            "column: NAME"), {"reward_funcs": [{"name": "exact_answer", "args": {"column": "solution"}}]}),
    Mistake("gold answers that the reward cannot read", ("train_dataset: ", "answer=2",
            "In a recipe a function of yours does so (prepare: file.py:function)."),
            {"dataset_name": "numbers.jsonl"}, by="script"),
    Mistake("weights that disagree",
            ("gives 'exact_answer' the weight 2, but reward_weights gives it 1.0. Leave one of the two out.",),
            {"reward_funcs": [{"name": "exact_answer", "weight": 2}], "reward_weights": [1.0]}),
    Mistake("too many weights", ("reward_weights has 2 values for 1 reward_funcs. Give one weight per reward.",),
            {"reward_weights": [1.0, 2.0]}),
    Mistake("an unknown metric", ("filter_metric='acuracy' is neither 'total' nor 'any'", "'exact_answer'"),
            {"filter_metric": "acuracy", "zero_variance_groups": "drop"}),
    Mistake("a filter by rewards whose weights are 0", ("reward_weights=[0.0] are all 0: no group could be alive.",
            "zero_variance_groups='keep' (now 'drop')"), {"reward_weights": [0.0], "zero_variance_groups": "drop"}),
    Mistake("a batch that does not divide", ("generation_batch_size (8)", "num_generations (16)", "x 1 process."),
            {"num_generations": 16}),
    Mistake("a batch that does not divide among three processes", ("generation_batch_size (24)",
            "num_generations (16)", "x 3 processes."), {"num_generations": 16, "gradient_accumulation_steps": 1},
            ("--num_processes", "3")),
    Mistake("an evaluation batch that splits groups",
            ("per_device_eval_batch_size (6) x processes (1) must be divisible by num_generations_eval", "(4)"),
            {"eval_on_start": True, "per_device_eval_batch_size": 6}),
    Mistake("more vLLM processes than training processes",
            ("vllm_tensor_parallel_size=2 must divide the number of processes, 1", "--num_processes"),
            {"use_vllm": True, "vllm_mode": "colocate", "vllm_tensor_parallel_size": 2}),
    Mistake("a backend for one process",
            ("ddp_backend='gloo' needs several processes, and this run has one (--num_processes)",),
            {"ddp_backend": "gloo"}, ("--num_processes", "1")),
    Mistake("a configuration of DeepSpeed in another encoding", ("deepspeed: latin.yaml is not UTF-8",),
            {"deepspeed": "latin.yaml"}, ("--num_processes", "2")),
    Mistake("a missing configuration of DeepSpeed", ("deepspeed: there is no file zero.json.",),
            {"deepspeed": "zero.json"}, ("--num_processes", "2")),
    Mistake("a folder as a configuration of DeepSpeed", ("deepspeed: . cannot be read: Is a directory.",),
            {"deepspeed": "."}, ("--num_processes", "2")),
    Mistake("no processes", ("--num_processes: 0 must be 1 or more.",), options=("--num_processes", "0"), status=2),
    Mistake("one attempt a prompt", ("num_generations=1 must be an integer and >= 2: GRPO compares the attempts",),
            {"num_generations": 1}),
    Mistake("no model", ("model_name_or_path is missing.",), {"model_name_or_path": ...}),
    Mistake("a prepare function that returns no model", ("model_name_or_path is missing.",),
            {"model_name_or_path": ..., "dataset_name": ..., "prepare": "task.py:prepare"}, by="script"),
    Mistake("a missing model", ("model_name_or_path: there is no folder ./modle. Did you mean ./model?",
            "A relative path starts in /"),
            {"model_name_or_path": "./modle"}),
    Mistake("a missing checkpoint",
            ("model_name_or_path: there is no folder outputs/first/checkpoint-100.",),
            {"model_name_or_path": "outputs/first/checkpoint-100"}),
    Mistake("no data", ("There is no data: set dataset_name, datasets or prepare.",), {"dataset_name": ...}),
    Mistake("a missing data file",
            ("dataset_name: there is no file or folder dta.jsonl. Did you mean data.jsonl", "A relative path"),
            {"dataset_name": "dta.jsonl"}),
    Mistake("a broken line of data",
            ("dataset_name: broken.jsonl, line 4 is not JSON (Expecting ',' delimiter at column 33). Correct the line",
             '"answer": "3"'),
            {"dataset_name": "broken.jsonl"}),
    Mistake("a broken line in a folder of data", ("folder/rows.jsonl, line 2 is not a JSON object", ": [1]"),
            {"dataset_name": "./folder"}),
    Mistake("a mixture with a missing file",
            ("datasets: there is no file or folder dta.jsonl. Did you mean data.jsonl",),
            mixture({"train": ["data.jsonl", "dta.jsonl"]})),
    Mistake("a mixture with a broken line",
            ("datasets: broken.jsonl, line 4 is not JSON (Expecting ',' delimiter at column 33). Correct the line",),
            mixture("data.jsonl", "broken*.jsonl")),
    Mistake("a mixture with a missing split",
            ('datasets: data.jsonl cannot be read: ValueError: Unknown split "tes". Should be one of',),
            mixture("data.jsonl", split="tes")),
    Mistake("a mixture whose files disagree", ("datasets: they cannot be read, or do not go together: ",),
            mixture("data.jsonl", "numbers.jsonl")),
    Mistake("a mixture's file instead of its kind",
            ("datasets: data.jsonl is a file, and path names", "Write path: json, data_files: data.jsonl."),
            mixture(path="data.jsonl")),
    Mistake("a broken array of data", ("broken.json is not JSON: ",), {"dataset_name": "broken.json"}),
    Mistake("data without a row", ("dataset_name: empty.jsonl is empty.",), {"dataset_name": "empty.jsonl"}),
    Mistake("a data file of another kind", ("data.tsv cannot be read: a data file ends in one of .jsonl",),
            {"dataset_name": "data.tsv"}),
    Mistake("semicolons between columns",
            ("semicolons.csv has only one column, 'prompt;answer'. Separate columns with commas", "sep=';'"),
            {"dataset_name": "semicolons.csv"}),
    Mistake("a line with too many columns", ("ragged.csv cannot be read: ParserError",
            "Expected 2 fields in line 3, saw 3"), {"dataset_name": "ragged.csv"}),
    Mistake("an empty prompt", ("train_dataset: 1 of 7 prompts is empty, row 6 (counted from 0).",
            "Remove these rows from the file, or use dataset.filter"), {"dataset_name": "blank.jsonl"}),
    Mistake("prompts that are null", ("train_dataset: 2 of 8 prompts are empty, row 0, 7 (counted from 0).",),
            {"dataset_name": "null.jsonl"}),
    Mistake("prompts without a message", ("train_dataset: 1 of 7 prompts is empty, row 6",),
            {"dataset_name": "silent.jsonl"}),
    Mistake("messages in texts", ("train_dataset: the prompts are texts that hold lists of messages",
            "dataset.map(lambda row: {'prompt': json.loads(row['prompt'])}), in a recipe in"),
            {"dataset_name": "messages.csv"}),
    Mistake("no column of prompts",
            ("train_dataset has no column 'prompt', the text or the messages to complete. It has 'question', 'answer'",
            "prepare: file.py:function"), {"dataset_name": "questions.jsonl"}),
    Mistake("a missing split",
            ("dataset_train_split: the data has no split 'trian', only train. Did you mean train?",),
            {"dataset_train_split": "trian"}),
    Mistake("a missing split to evaluate on",
            ("dataset_test_split: the data has no split 'validatoin', only ", "Did you mean validation?"),
            {"dataset_name": "splits", "dataset_test_split": "validatoin", "do_eval": True}),
    Mistake("a configuration of a file", ("dataset_name: data.jsonl is a file, so dataset_config='main' has no effect",
            "Remove dataset_config."), {"dataset_config": "main"}),
    Mistake("no training", ("do_train: false has no effect: a run always trains. Remove it.",), {"do_train": False}),
    Mistake("no training, on the command line", ("do_train: false has no effect",), {"do_train": True},
            ("--do_train", "false")),
    Mistake("evaluation without a split for it",
            ("Evaluation is on, but the data has no split other than the training split.", "eval_strategy"),
            {"eval_strategy": "steps", "eval_steps": 1}),
    Mistake("a missing tool", ("tools: task.py has no function 'prepar'. Did you mean prepare?",),
            {"tools": ["task.py:prepare", "task.py:prepar"]}),
    Mistake("a missing prepare function",
            ("prepare: task.py has no function 'prepar'. Did you mean prepare?",),
            {"dataset_name": ..., "prepare": "task.py:prepar"}),
    Mistake("an unknown argument of prepare",
            ("prepare_args: prepare has no argument 'row', only rows. Did you mean rows?",),
            {"dataset_name": ..., "prepare": "task.py:prepare", "prepare_args": {"row": 3}}),
    Mistake("arguments without a prepare function",
            ("prepare_args needs prepare, the function that takes them.",),
            {"prepare_args": {"rows": 3}}),
    Mistake("arguments of prepare that are not JSON", ("prepare_args: '{rows: 3' is not JSON.",),
            {"dataset_name": ..., "prepare": "task.py:prepare"}, ("--prepare_args", "{rows: 3")),
    Mistake("arguments of prepare without names",
            ("prepare_args: [3] must map names of prepare's arguments to values.",),
            {"dataset_name": ..., "prepare": "task.py:prepare"}, ("--prepare_args", "[3]")),
    Mistake("too few rows for a step", ("the training set has 6 rows, and a generation batch takes 16 prompts",
            "a smaller generation batch"), {"per_device_train_batch_size": 64}),
    Mistake("a stream too short for a step", ("the training set has 6 rows, and a generation batch takes 16 prompts",),
            {"dataset_streaming": True, "max_steps": 2, "per_device_train_batch_size": 64}),
    Mistake("a stream without an end", ("a stream has no length: set max_steps",),
            {"dataset_streaming": True, "max_steps": -1}),
    Mistake("a stream to resample from", ("zero_variance_groups='resample' needs a map-style dataset",
            "zero_variance_groups='skip' or 'drop'"), {"dataset_streaming": True, "zero_variance_groups": "resample"}),
    Mistake("too few rows to resample from", ("zero_variance_groups='resample' needs more prompts than the 6",
            "the dataset has 6", "'skip'"), {"per_device_train_batch_size": 24, "zero_variance_groups": "resample"}),
    Mistake("a stream to choose from by a class", ("prompt_selection='my_rewards.py:even' needs a map-style dataset",
            "or set prompt_selection='belief', which reads a stream ahead"),
            {"dataset_streaming": True, "prompt_selection": "my_rewards.py:even"}),
    Mistake("a belief_key that is not a column", ("belief_key='anser' is no column of the training set, which has "
            "'prompt', 'answer'. Did you mean answer?",), {"belief_key": "anser", **BELIEF}),
    Mistake("levels in a missing column",
            ("prompt_selection: the training set has no column 'level'. It has 'prompt', 'answer'",),
            {"prompt_selection": {"name": "by_column", "args": {"column": "level", "order": "easy_first"}}}),
    Mistake("an unknown order", ("prompt_selection='by_column': order='easy' must be one of 'easy_first'",),
            {"prompt_selection": {"name": "by_column", "args": {"column": "answer", "order": "easy"}}}),
    Mistake("a missing class of a stream", ("my_rewards.py has no function 'evn'. Did you mean even?",),
            {"prompt_selection": "my_rewards.py:evn"}),
    Mistake("a missing advantage function", ("my_rewards.py has no function 'evn'. Did you mean even?",),
            {"advantage_estimator": "my_rewards.py:evn"}),
    Mistake("an advantage function without its argument", ("advantage_estimator='pkpo': it needs k",),
            {"advantage_estimator": "pkpo"}),
    Mistake("beliefs divided by the std of a group",
            ("advantage_baseline='belief' does not go with scale_rewards='group'", "'prior'"),
            {"advantage_baseline": "belief"}),
    Mistake("prompts longer than the context", ("301 at most", "max_completion_length=8 they need 309",
            "the 64 of the model's context", "Lower"), {"dataset_name": "long.jsonl"}, by=""),
    Mistake("messages without a chat template",
            ("the prompts are messages, but the tokenizer of ./model has no chat template", "plain texts"),
            {"dataset_name": "chat.jsonl"}),
    Mistake("KL options without KL", ("kl_estimator='k2' has no effect with beta=0.0", "Set beta to a positive value"),
            {"kl_estimator": "k2"}),
    Mistake("vLLM's options without vLLM",
            ("vllm_gpu_memory_utilization has no effect without use_vllm. Set use_vllm: true",),
            {"vllm_gpu_memory_utilization": 0.5}),
    Mistake("an adapter's options without an adapter",
            ("lora_alpha, lora_r have no effect without use_peft. Set use_peft: true",),
            {"lora_r": 32, "lora_alpha": 64}),
    Mistake("an adapter on missing layers", ("q_prj", "not found in the base model"),
            {"use_peft": True, "lora_target_modules": ["q_prj"]}, by=""),
    Mistake("quantized weights without an adapter", ("load_in_4bit: quantized weights cannot be trained",
            "Set use_peft: true."), {"load_in_4bit": True}),
    Mistake("a missing checkpoint to resume from",
            ("resume_from_checkpoint: out/checkpoint-9 is not a checkpoint.",
             "Give true (the last checkpoint), auto, or a folder such as out/checkpoint-100."),
            options=("--resume_from_checkpoint", "out/checkpoint-9")),
    Mistake("a missing checkpoint of a run that has others",
            ("nowhere is not a checkpoint.", "or a folder such as earlier/checkpoint-10."),
            {"output_dir": "earlier", "resume_from_checkpoint": "nowhere"}),
    Mistake("a mistyped checkpoint", ("earlier/checkpoint-51 is not a checkpoint. There is no such folder.",
            "Did you mean earlier/checkpoint-5 or earlier/checkpoint-10?"),
            {"resume_from_checkpoint": "earlier/checkpoint-51"}),
    Mistake("a checkpoint without its folder", ("There is no such folder. Did you mean earlier/checkpoint-5?",),
            {"output_dir": "earlier", "resume_from_checkpoint": "checkpoint-5"}),
    Mistake("a number to resume from",
            ("resume_from_checkpoint=1 is neither a text nor true or false. Give true (the last checkpoint), auto",),
            {"resume_from_checkpoint": 1}),
    Mistake("a yes to resume without a checkpoint", ("resume_from_checkpoint is true, but out holds no checkpoint.",),
            options=("--resume_from_checkpoint", "Yes")),
    Mistake("a resume without a checkpoint", ("resume_from_checkpoint is true, but out holds no checkpoint.",),
            {"resume_from_checkpoint": True}),
    Mistake("a run instead of its checkpoint to resume from",
            ("resume_from_checkpoint: earlier is a run, not a checkpoint. "
             "Its last checkpoint is earlier/checkpoint-10.",),
            {"resume_from_checkpoint": "earlier"}),
    Mistake("an unknown accelerate_config",
            ("'zero4' is neither a file nor one of TRL's configurations", "Did you mean zero"),
            options=("--accelerate_config", "zero4"), status=2),
    Mistake("an unknown recipe", ("'aritmetic_cpu' is neither a file nor a recipe. Did you mean arithmetic_cpu",),
            recipe="aritmetic_cpu", status=2),
    Mistake("a recipe in another encoding",
            ("latin.yaml is not UTF-8: byte 5 is of another encoding. Save the file as UTF-8.",),
            recipe="latin.yaml"),
    Mistake("a configuration in another encoding", ("--accelerate_config: latin.yaml is not UTF-8",),
            options=("--accelerate_config", "latin.yaml"), status=2),
    Mistake("a script instead of a recipe", ("task.py is a Python script.",
            "a YAML file, or one of arithmetic_cpu", "accelerate launch task.py"), recipe="task.py", status=2),
    Mistake("a missing recipe file", ("'my_rn.yaml' is neither a file nor a recipe",), recipe="my_rn.yaml",
            status=2),
)
# fmt: on


def make_place(folder: Path) -> None:
    """Write the files that the right recipe and the wrong recipes name."""
    from tiny_models import model_path, tokenizer

    Path(model_path(folder)).rename(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    sums = [(f"{i}+{i}=", str(2 * i)) for i in range(1, 7)]
    write_rows(folder / "data.jsonl", [{"prompt": prompt, "answer": answer} for prompt, answer in sums])
    write_rows(folder / "numbers.jsonl", [{"prompt": prompt, "answer": int(answer)} for prompt, answer in sums])
    write_rows(folder / "questions.jsonl", [{"question": prompt, "answer": answer} for prompt, answer in sums])
    write_rows(folder / "long.jsonl", [{"prompt": prompt + "1" * 297, "answer": answer} for prompt, answer in sums])
    chat = [{"prompt": [{"role": "user", "content": prompt}], "answer": answer} for prompt, answer in sums]
    write_rows(folder / "chat.jsonl", chat)
    write_broken(folder)
    (folder / "link").symlink_to(folder / "gone")
    (folder / "splits").mkdir()
    for split in ("train", "test", "valid"):
        write_rows(folder / "splits" / f"{split}.jsonl", [{"prompt": f"{split} {p}", "answer": a} for p, a in sums])
    (folder / "task.py").write_text(TASK)
    (folder / "latin.yaml").write_bytes("# Größe\n".encode("latin-1"))
    (folder / "my_rewards.py").write_text(REWARDS)
    for checkpoint in ("checkpoint-5", "checkpoint-10", "."):
        (folder / "earlier" / checkpoint).mkdir(parents=True, exist_ok=True)
        (folder / "earlier" / checkpoint / "trainer_state.json").write_text("{}")


def write_broken(folder: Path) -> None:
    """Write data files that cannot be read or cannot be trained on."""
    right = [{"prompt": f"{i}+0=", "answer": str(i)} for i in range(6)]
    write_rows(folder / "broken.jsonl", right)
    whole = (folder / "broken.jsonl").read_text()
    (folder / "data.tsv").write_text(whole)
    (folder / "broken.jsonl").write_text(whole.replace('"3"}', '"3"'))
    (folder / "broken.json").write_text(json.dumps(right, indent=1)[:-4])
    (folder / "folder").mkdir()
    (folder / "folder" / "rows.jsonl").write_text(whole.partition("\n")[0] + "\n[1]\n")
    (folder / "empty.jsonl").touch()
    write_rows(folder / "blank.jsonl", [*right, {"prompt": " ", "answer": "1"}])
    write_rows(folder / "null.jsonl", [nothing := {"prompt": None, "answer": "1"}, *right, nothing])
    chat = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in right]
    write_rows(folder / "silent.jsonl", [*chat, {"prompt": [], "answer": "1"}])
    messages = '"[{""role"": ""user"", ""content"": ""1+1=""}]",2\n'
    (folder / "messages.csv").write_text("prompt,answer\n" + messages * 6)
    (folder / "semicolons.csv").write_text("prompt;answer\n" + "1+1=;2\n" * 6)
    (folder / "ragged.csv").write_text("prompt,answer\n1+1=,2\n1+1=,2,3\n")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
