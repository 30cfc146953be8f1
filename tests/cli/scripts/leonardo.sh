#!/bin/bash
#SBATCH --partition=boost_usr_prod
#SBATCH --qos=boost_qos_dbg
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
#SBATCH --account=iscra
torchrun --nnodes=4 --nproc_per_node=4 train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --bf16 --fsdp full_shard --max_steps 100
