"""Settings by the names that other libraries give them: TRL, verl, OpenRLHF, verifiers and prime-rl, torchforge.

"did you mean" looks here first, and docs/coming_from.md shows the most used ones.
"""

from __future__ import annotations

from collections.abc import Collection

ALGORITHM = "ALGORITHM"
"""Stands for the section of the run's algorithm, such as "grpo"."""
OUR_NAMES = {
    "model.path": """hf_checkpoint model model_name model_name_or_path pretrain actor_model base_model hf_model
        model_id model.name""",
    "output": """output_dir default_local_dir ckpt_path save_path output_path out_dir save_dir run_name experiment_name
        exp_name""",
    "resume": "resume_from_checkpoint resume_mode load_checkpoint resume_path ckpt.resume_step",
    "dataset.path": "dataset dataset_name train_dataset prompt_data train_files data_path train_file dataset_path",
    "dataset.split": "dataset_split prompt_split train_split dataset_train_split",
    "dataset.tasks": "num_examples max_samples train_max_samples num_train_examples num_tasks max_train_samples",
    "dataset.held_out": "num_eval_examples val_max_samples eval_max_samples max_eval_samples",
    "env.name": "environment environment.id env_id environment_id env_name env.id vf_env_id environment_factory",
    "env.options": "env_args environment_args environment.args env.args env_kwargs",
    "env.max_turns": "max_assistant_turns multi_turn.max_turns max_tool_calling_iterations max_steps_per_episode",
    "env.max_turn_tokens": """max_completion_length max_new_tokens max_response_length generate_max_len response_length
        max_completion_tokens rollout.response_length sampling.max_tokens sampling_args.max_tokens""",
    "env.max_tokens": """max_model_len max_seq_len max_length max_seq_length max_prompt_length prompt_max_len max_len
        max_input_tokens vllm_max_model_length""",
    "env.max_thinking_tokens": "thinking_budget max_think_tokens max_thinking_length",
    "env.thinking": "enable_thinking thinking",
    "renderer.tools": "tool_parser tool_call_parser chat_template",
    "warmup.steps": "num_sft_steps sft_warmup_steps",
    "sft.epochs": "epochs num_train_epochs max_epochs total_epochs num_epochs",
    "training.steps": """epochs num_train_epochs max_epochs total_epochs num_epochs max_steps
        total_training_steps num_rollout num_steps train_steps total_steps training_steps max_train_steps""",
    "training.batch_size": """batch_size rollout_batch_size train_batch_size per_device_train_batch_size groups_per_step
        prompts_per_step local_batch_size generation_batch_size gen_batch_size train_micro_batch_size unique_prompts
        num_unique_prompts_rollout ppo_mini_batch_size""",
    "training.gradient_accumulation_steps": "grad_accumulation_steps accumulate_grad_batches",
    "training.max_tokens_per_micro_batch": """micro_batch_size micro_train_batch_size ppo_max_token_len_per_gpu
        ppo_micro_batch_size_per_gpu ppo_micro_batch_size micro_rollout_batch_size max_tokens_per_gpu""",
    "training.sync_interval": "steps_per_generation",
    "training.staleness": "max_async_level async_level off_by_n max_policy_age max_off_policy_steps",
    "training.seq_len": "block_size seqlen cutoff_len",
    "training.packing": "use_remove_padding packing_samples use_dynamic_bsz padding_free sample_packing",
    "training.learning_rate": "learning_rate lr actor_learning_rate optim.lr actor_lr max_lr peak_lr",
    "training.lr_schedule": """lr_scheduler_type lr_scheduler scheduler scheduler.type warmup_style scheduler_type
        lr_decay_style""",
    "training.warmup_steps": """warmup_ratio lr_warmup_steps num_warmup_steps lr_warmup_ratio lr_warmup_steps_ratio
        warmup_step""",
    "training.weight_decay": "l2 adam_weight_decay optim.weight_decay",
    "training.max_grad_norm": "grad_clip clip_grad max_norm gradient_clipping gradient_clip_val grad_norm_clip",
    "training.entropy_coef": "entropy_coeff entropy_loss_coef entropy_bonus ent_coef",
    "training.observation_coef": "env_loss_coef world_model_coeff aux_token_loss_coeff echo_alpha",
    "training.dtype": "bf16 fp16 torch_dtype model_dtype param_dtype mixed_precision precision",
    "training.activation_checkpoint": """gradient_checkpointing enable_gradient_checkpointing ac
        activation_checkpointing activation_checkpoint.mode""",
    "training.attention": "attn_implementation flash_attn attn_impl",
    "training.cpu_offload": "param_offload offload optimizer_offload fsdp_cpu_offload adam_offload",
    "training.compile": "torch_compile use_torch_compile",
    "training.reward": """reward_funcs reward_func reward_function reward_fn remote_rm_url custom_reward_function.path
        custom_reward_function.name""",
    "training.advantages": "adv_estimator advantage_estimator advantage_fn",
    "training.loss": "loss_fn policy_loss.loss_mode custom_loss",
    "training.seed": "data_seed random_seed",
    "training.mismatch_alarm": "rollout_mismatch_threshold",
    "distill.teacher": """teacher_model teacher_model_name_or_path teacher_path opd_teacher_load
        teacher_model.model_path""",
    "distill.coef": "opd_kl_coef distillation_loss_coef distill_coef",
    "distill.top_k": "topk_logits_k distillation_topk loss_top_k teacher_topk",
    "lora.rank": "lora_r lora_rank r peft_rank lora.r peft_config",
    "lora.alpha": "lora_alpha",
    "lora.targets": "lora_target_modules target_modules lora_targets",
    "lora.adapter": "adapter_path lora_adapter_path adapter_name_or_path",
    "ALGORITHM.n_samples": """num_generations rollout.n n_samples_per_prompt rollouts_per_example group_size
        rollouts_per_prompt n_samples num_samples_per_prompt samples_per_prompt num_samples_per_prompt_rollout
        n_rollouts num_rollouts rollouts num_return_sequences n""",
    "ALGORITHM.temperature": "temperature rollout.temperature sampling.temperature sampling_args.temperature",
    "ALGORITHM.beta": """beta kl_coef kl_loss_coef init_kl_coef kl_coeff kl_beta kl_ctrl.kl_coef kl_tau
        kl_penalty_coef""",
    "ALGORITHM.kl": "kl_loss_type kl_estimator kl_penalty kl_penalty_type",
    "ALGORITHM.kl_in": "use_kl_loss use_kl_in_reward kl_in_reward",
    "ALGORITHM.aggregation": "loss_type loss_agg_mode loss_aggregation",
    "ALGORITHM.normalization": "scale_rewards norm_adv_by_std_in_grpo no_advantage_std_norm adv_norm advantage_norm",
    "ALGORITHM.reward_parts": "multi_objective_aggregation reward_weights",
    "ALGORITHM.correction": "vllm_importance_sampling_correction rollout_is tis importance_sampling_correction",
    "ALGORITHM.correction_high": """vllm_importance_sampling_cap tis_imp_ratio_cap rollout_is_threshold
        importance_sampling_cap""",
    "ALGORITHM.clip_low": "epsilon eps_clip clip_ratio clip_ratio_low eps_clip_low cliprange clip_eps epsilon_low",
    "ALGORITHM.clip_high": "epsilon_high clip_ratio_high eps_clip_high",
    "ALGORITHM.dual_clip": "clip_ratio_c delta dual_clip_c",
    "services.trainer.procs": "nproc_per_node n_gpus_per_node num_gpus actor_num_gpus_per_node world_size",
    "services.generator.num_replicas": "vllm_num_engines num_engines data_parallel_size inference_gpu_ids dp",
    "services.generator.procs": "tensor_model_parallel_size vllm_tensor_parallel_size tensor_parallel_size tp",
    "services.generator.gpu_memory_utilization": "vllm_gpu_memory_utilization gpu_mem_util",
    "services.generator.cuda_graphs": "enforce_eager",
    "services.generator.sleep": "vllm_enable_sleep enable_sleep_mode vllm_enable_sleep_mode free_cache_engine",
    "services.ref_model.procs": "ref_num_gpus_per_node ref_model_procs",
    "launcher.share_gpus": "colocate_all_models hybrid_engine vllm_mode colocate",
    "launcher.hosts": "nnodes num_nodes",
    "parallelism.tensor_parallel_degree": "trainer_tensor_parallel_size",
    "parallelism.context_parallel_degree": "ulysses_sequence_parallel_size ring_attn_size cp context_parallel_size",
    "parallelism.data_parallel_shard_degree": "fsdp_size dp_shard zero_stage",
    "parallelism.expert_parallel_degree": "expert_model_parallel_size ep expert_parallel_size",
    "evaluation.interval": "eval_steps test_freq eval_interval eval_freq eval_every eval_strategy",
    "evaluation.n": "eval_n_samples_per_prompt val_kwargs.n eval_rollouts_per_example num_generations_eval",
    "evaluation.temperature": "eval_temperature val_kwargs.temperature",
    "evaluation.top_p": "val_kwargs.top_p eval_top_p",
    "checkpoint.interval": "save_steps save_freq save_interval ckpt.interval save_every save_strategy",
    "checkpoint.keep_last": "save_total_limit max_ckpt_num max_actor_ckpt_to_keep ckpt.keep",
    "metrics.sinks": """report_to use_wandb wandb trainer.logger log_with wandb_mode wandb_project project_name project
        wandb.project wandb_run_name wandb.name""",
    "metrics.tensorboard": "use_tensorboard tensorboard_dir logging_dir",
    "": """top_k min_p repetition_penalty num_iterations ppo_epochs gamma lam lambd critic_learning_rate critic_warmup
        sync_ref_model per_device_eval_batch_size hub_model_id logging_steps mask_truncated_completions
        lora_dropout optim adam_beta1 adam_beta2 dataset_text_field load_in_4bit trust_remote_code value_clip
        deepspeed importance_sampling_level use_liger_loss ref_model_mixup_alpha ref_model_sync_steps type level""",
}
"""Our name -> the names of others, with as many parts from the right as tell them apart. Of several that lead to ours
the first counts that a run has: reinforcement learning has no epochs. Nothing here does what the last ones do."""


def names_of_others() -> list[str]:
    return [name for names in OUR_NAMES.values() for name in names.split()]


def our_name(theirs: str, algorithm: str, known: Collection[str]) -> str:
    """Our name of a setting that has another name elsewhere; "" if there is none in this run.

    >>> our_name("actor_rollout_ref.rollout.n", "grpo", {"grpo.n_samples"})
    'grpo.n_samples'

    Args:
        theirs: a dotted name. Its last parts count, as many as are known; a section of ours stays.
    """
    parts = theirs.split(".")
    for name in (".".join(parts[i:]) for i in range(len(parts))):
        ours = [ours.replace(ALGORITHM, algorithm) for ours, names in OUR_NAMES.items() if name in names.split()]
        same_section = [f"{parts[0]}.{one.rpartition('.')[2]}" for one in ours]
        if here := [one for one in (*same_section, *ours) if one in known]:
            return here[0]
    return ""
