#!/bin/bash
#SBATCH -A ABC123
#SBATCH -J llama
#SBATCH -o %x-%j.out
#SBATCH -t 04:00:00
#SBATCH -p batch
#SBATCH -N 16
#SBATCH --network=disable_rdzv_get
module load PrgEnv-gnu rocm/7.1.1 rccl-net-plugin craype-accel-amd-gfx90a
export NCCL_SOCKET_IFNAME=hsn0
export FI_MR_CACHE_MONITOR=kdreg2
export MASTER_ADDR=$(hostname -i)
srun -N16 -n128 -c7 --ntasks-per-node=8 --gpus-per-task=1 --gpu-bind=closest python3 -u pretrain_gpt.py --tensor-model-parallel-size 16 --pipeline-model-parallel-size 1 --sequence-parallel --num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer --recompute-activations --train-iters 200
