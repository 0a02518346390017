cd /work/w-require; export PYTHONPATH=/work/w-require/src OMP_NUM_THREADS=1 MYPYPATH=/work/w-require/src
exec "$@"
